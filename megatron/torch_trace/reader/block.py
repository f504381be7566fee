# SPDX-License-Identifier: Apache-2.0
"""A block of typed events, decoded by the fast road or, where that fails, by the slow one."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, Generic

from megatron.torch_trace.reader.cutter import RawBlock
from megatron.torch_trace.reader.damage import Damage
from megatron.torch_trace.reader.event import (
    EventT,
    decode_loosely,
    decode_strictly,
)

if TYPE_CHECKING:
    from megatron.torch_trace.reader.texts import Texts

_END = re.compile(rb'\}(\s*)\](?=\s*(?:,\s*"|\}|\Z))')
_EMPTY = re.compile(rb'\s*\]\s*(?:,\s*"|\}|\Z)')
_END_TRIES = 8


class EventBlock(Generic[EventT]):
    """Events that stand next to each other in the file, about 1 MiB of text.

    Attributes:
        events: the events in the order of the file.
        offset: byte of the uncompressed file at which the block begins.
        size: bytes of its text, what separates events included.
        damage: what had to be repaired or dropped in it.
        end: for the reader: position in the block's text behind traceEvents' `]`, or None.
        unfinished: for the reader: position of an event that the block does not finish, or None.
    """

    def __init__(self, raw: RawBlock, kind: type[EventT]) -> None:
        self.offset = raw.offset
        self.size = len(raw.text)
        self.damage = Damage()
        self.end: int | None = None
        self.unfinished: int | None = None
        self._separator = raw.separator
        self._text: bytes | None = raw.text
        self._offsets: list[int] | None = None
        self._salvaged: list[bytes] | None = None
        events = self._decode_last(raw, kind) if raw.is_last else decode_strictly(raw.text, kind)
        if events is None:
            events = self._salvage(raw, kind)
        self.events: list[EventT] = events

    def _decode_last(self, raw: RawBlock, kind: type[EventT]) -> list[EventT] | None:
        if _EMPTY.match(raw.text):
            self.end = raw.text.index(b"]") + 1
            self._text = b""
            return []
        for number, match in enumerate(_END.finditer(raw.text)):
            if number == _END_TRIES:
                break
            text = raw.text[: match.start() + 1]
            events = decode_strictly(text, kind)
            if events is not None:
                self.end = match.end()
                self._text = text
                return events
        return None

    def _salvage(self, raw: RawBlock, kind: type[EventT]) -> list[EventT]:
        # Imported here: every process that reads would wait for it, and few files are damaged.
        from megatron.torch_trace.reader.salvage import salvage

        saved = salvage(raw.text, raw.offset)
        self.damage = saved.damage
        # Rubbish in the middle of a file ends nothing: later blocks hold events again.
        self.end = None if saved.is_end_guessed and not raw.is_last else saved.end
        self.unfinished = saved.unfinished
        self._text = None
        self._offsets = [raw.offset + offset for offset in saved.offsets]
        self._salvaged = saved.texts
        return [decode_loosely(text, kind) for text in saved.texts]

    @cached_property
    def event_texts(self) -> Texts:
        """The text of each event as strict JSON; as in the file unless it had to be repaired."""
        from megatron.torch_trace.reader.texts import Texts

        if self._salvaged is not None:
            return Texts.joined(self._salvaged)
        return Texts.of(self._text or b"", len(self.events), self._separator)

    @cached_property
    def texts(self) -> list[bytes]:
        """Each event as strict JSON; as it stands in the file unless it had to be repaired."""
        texts = self.event_texts
        bounds = zip((texts.starts - 1).tolist(), (texts.ends + 1).tolist(), strict=True)
        return [texts.text[start:end] for start, end in bounds]

    @property
    def text(self) -> bytes | None:
        """All events as they stand in the file, separators included; None if any was repaired."""
        return self._text

    def event_offset(self, index: int) -> int:
        """Byte of the uncompressed file at which event `index` begins, for messages."""
        if self._offsets is not None:
            return self._offsets[index]
        position = 0
        text = self._text or b""
        for number, event in enumerate(self.texts):
            position = text.index(event, position)
            if number == index:
                break
            position += len(event)
        return self.offset + position
