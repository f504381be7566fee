# SPDX-License-Identifier: Apache-2.0
"""Cutting the text of a trace into header, blocks of whole events, and tail, without parsing it.

    { "schemaVersion": 1, ... "traceEvents": [      header
      {event}, {event}, {event},                     block
      {event}, {event}                               last block, with all that follows it
      ], "traceName": "..." }                        (the tail, once the block is decoded)

The cut between two blocks falls on a separator as this very file writes it, learnt from its first
events. A cut that the text's damage misleads costs one event: each block is decoded on its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.format.other_formats import Maker, not_a_trace, other_maker
from megatron.torch_trace.reader.bytestream import ByteStream
from megatron.torch_trace.reader.damage import Damage
from megatron.torch_trace.reader.landmarks import EVENT_KEYS

BLOCK_BYTES = 1 << 20
"""Measured: larger blocks fall out of the processor's cache while they are decoded."""
_BLOCKS_AT_ONCE = 4
"""Text that is put together from pieces; of less, more is copied again with the next pieces."""

_BEFORE = b"\xef\xbb\xbf \t\r\n"
_SNIFF_BYTES = 1 << 16
_LARGEST = 1 << 26

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_FIRST_EVENT = re.compile(rb'\[\s*\{\s*"(?:ph|name|cat|ts|pid|tid)"\s*:')
_BROKEN_FRAME = re.compile(rb'"traceEvents".{0,12}?(?=\{\s*")', re.DOTALL)
_KNOWN = re.compile(
    rb'"(?:traceEvents|schemaVersion|deviceProperties|distributedInfo|baseTimeNanoseconds|traceName'
    rb'|displayTimeUnit|torch_profile)"\s*:'
)
_BOUNDARY = re.compile(rb"\}\s*,\s*\{\s*\"(?:" + EVENT_KEYS.encode() + rb")\"\s*:")
_FLOW = re.compile(rb'\{\s*"ph"\s*:\s*"[stf]"')


class NotATraceError(UsageError):
    """The file is something else; `reason` says what, without naming the file."""

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(f"{path}: no trace: {reason}.")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class RawBlock:
    """Whole events as they stand in the file, with what is between them.

    Args:
        text: the first byte belongs to an event or to the blanks before it.
        offset: of the first byte in the uncompressed file.
        is_last: everything up to the end of the file, the tail included.
        separator: what stands between the `}` and the `{` of neighbours, if it is always the same.
    """

    text: bytes
    offset: int
    is_last: bool
    separator: bytes | None


class Cutter:
    """Cut one stream. `header` is there once iteration has begun.

    Attributes:
        header: the text before the first event, without the key `traceEvents`.
        is_array: the file is a bare array of events.
        has_events: the file holds traceEvents, perhaps empty, beside metadata.
        damage: faults of the frame.
        maker: who else than torch.profiler wrote the events, by their look; None if nobody.
    """

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream
        self.header = b""
        self.is_array = False
        self.has_events = False
        self.damage = Damage()
        self.maker: Maker | None = None
        self._pieces = iter(stream)
        self._text = b""
        self._offset = 0
        self._separator: bytes | None = None
        self._cut_at: bytes | None = None
        self._started = False

    def start(self) -> None:
        """Read the header.

        Raises:
            NotATraceError: the file is no trace.
        """
        if self._started:
            return
        self._started = True
        self._fill(_SNIFF_BYTES)
        self._refuse_strangers()
        searched = 0
        while True:
            key = _EVENTS_KEY.search(self._text, searched)
            first = None
            if key and self._text[: key.start()].lstrip(_BEFORE)[:1] == b"[":
                # Events without a frame, and another document behind them.
                first = _FIRST_EVENT.search(self._text, 0, key.start())
                key = None if first else key
            elif key is None:
                first = _BROKEN_FRAME.search(self._text) or _FIRST_EVENT.search(self._text)
            if key or first:
                break
            if len(self._text) > _LARGEST:
                raise NotATraceError(self.stream.path, "no traceEvents in the first 64 MiB")
            searched = max(0, len(self._text) - 64)
            if not self._fill(len(self._text) * 2):
                self.header, self._text = self._text, b""
                return
        self.has_events = True
        if key:
            self.header = self._text[: key.start()]
            begin = key.end()
        else:
            assert first is not None
            begin = first.start() + 1 if first[0].startswith(b"[") else first.end()
            self.is_array = not self._text[: first.start()].strip(_BEFORE)
            self.header = b"" if self.is_array else self._text[: first.start()]
            if not self.is_array:
                self.damage.add("broken_array", first.start())
        self._text = self._text[begin:]
        self._offset = begin
        self._learn()
        self.maker = other_maker(self._text[:_SNIFF_BYTES])

    def __iter__(self) -> Iterator[RawBlock]:
        self.start()
        ended = False
        wanted = _BLOCKS_AT_ONCE * BLOCK_BYTES
        while not ended:
            ended = not self._fill(wanted)
            position = 0
            while len(self._text) - position > BLOCK_BYTES:
                cut = self._find_cut(position)
                if cut < 0:
                    break
                yield self._block(position, cut, False)
                position = self._text.index(b",", cut) + 1
            self._text = self._text[position:]
            self._offset += position
            # Where no event ended, it takes more text than there was to find out.
            wanted = max(
                _BLOCKS_AT_ONCE * BLOCK_BYTES, min(2 * len(self._text), _LARGEST + BLOCK_BYTES)
            )
            if not ended and len(self._text) > _LARGEST:
                # Not one event ends here: no event is that long, so this is no event.
                self.damage.add("lost_event", self._offset)
                keep = 1 << 16
                self._offset += len(self._text) - keep
                self._text = self._text[-keep:]
        if self.has_events:
            yield self._block(0, len(self._text), True)

    def _block(self, start: int, end: int, is_last: bool) -> RawBlock:
        return RawBlock(self._text[start:end], self._offset + start, is_last, self._separator)

    def _fill(self, size: int) -> bool:
        """Read until `size` bytes are there; False at the end of the file."""
        pieces = [self._text]
        length = len(self._text)
        more = True
        while length < size:
            piece = next(self._pieces, b"")
            if not piece:
                more = False
                break
            pieces.append(piece)
            length += len(piece)
        self._text = b"".join(pieces)
        return more

    def _refuse_strangers(self) -> None:
        head = self._text[:_SNIFF_BYTES]
        text = head.lstrip(_BEFORE)
        if _KNOWN.search(head):
            return
        if text[:1] == b"[" and (b'"ph"' in text or text[1:].strip() in (b"]", b"")):
            return
        raise NotATraceError(self.stream.path, not_a_trace(head))

    def _learn(self) -> None:
        """How this file separates events, from the first two."""
        self._fill(BLOCK_BYTES)
        found = _BOUNDARY.search(self._text)
        if not found:
            return
        text = found[0]
        brace = text.rindex(b"{")
        self._separator = text[1:brace]
        if b"\n" in self._separator:
            # The indentation tells an event from anything inside one; any key may come first.
            self._cut_at = text[: text.index(b'"', brace) + 1]
        else:
            self._cut_at = text[: text.rindex(b'"') + 1]

    def _find_cut(self, position: int) -> int:
        """Just behind the last `}` that ends an event in the next block, or -1 for "read more".

        An arrow follows the slice that it starts or ends at, and is understood by it: no block
        begins with one.
        """
        stop = position + BLOCK_BYTES
        if self._cut_at:
            for _ in range(16):
                found = self._text.rfind(self._cut_at, position, stop)
                if found <= position:
                    break
                if not _FLOW.match(self._text, self._text.index(b"{", found)):
                    return found + 1
                stop = found
            found = self._text.find(self._cut_at, position + BLOCK_BYTES - len(self._cut_at))
            if found >= 0:
                return found + 1
        # The separator that the file began with is gone; take anything that looks like one.
        if len(self._text) - position < 4 * BLOCK_BYTES:
            return -1
        for match in _BOUNDARY.finditer(self._text, position + BLOCK_BYTES):
            return match.start() + 1
        return -1
