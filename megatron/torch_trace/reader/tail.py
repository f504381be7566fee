# SPDX-License-Identifier: Apache-2.0
"""What stands behind traceEvents: metadata up to the document's end, and nothing behind that.

    ], "traceName": "a"}                    {"schemaVersion": 1, "traceEvents": [ ...
       ^ members      ^ the document's end  ^ foreign: another writer's document, or rubbish

Perfetto stops at the end, others refuse the file: what stands behind it is said, with its offset.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from megatron.torch_trace.reader.damage import Damage

# A string that is not closed ends with the text: tried again from its next quote, it would take
# quadratic time.
STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)

_TOKEN = re.compile(STRING.pattern + rb"|[{}]", re.DOTALL)
_BLANK = re.compile(rb"[\s\0]*")
_DOCUMENT = re.compile(rb"\{\s*[\"}]|\[\s*[{\]]")
_EVENT = re.compile(rb'"ph"\s*:')
_LARGEST = 1 << 26


class Split(NamedTuple):
    """A tail in two.

    Args:
        members: metadata, without the brace that closes the document.
        foreign: position of what stands behind the document's end; -1 for nothing.
    """

    members: bytes
    foreign: int


def split(tail: bytes, is_array: bool) -> Split:
    """Find the document's end in the text behind the `]` of traceEvents."""
    if is_array:
        foreign = _behind(tail, 0)
        return Split(b"", -1 if not tail[foreign:].strip(b" \t\r\n,\0") else foreign)
    whole = tail.rstrip(b" \t\r\n\0")
    if whole.endswith(b"}") and _is_strict(whole[:-1]):
        return Split(whole[:-1], -1)
    end = _end_of(tail)
    if end >= 0:
        foreign = _behind(tail, end + 1)
        # Quotes inside of a damaged string mislead about its end, so one of both must be sure.
        if foreign < len(tail) and (_DOCUMENT.match(tail, foreign) or _is_strict(tail[:end])):
            return Split(tail[:end], foreign)
    return Split(whole.removesuffix(b"}"), -1)


def _end_of(tail: bytes) -> int:
    """Offset of the first brace that closes more than was opened, or -1."""
    depth = 0
    for token in _TOKEN.finditer(tail):
        if token[0] == b"{":
            depth += 1
        elif token[0] == b"}":
            depth -= 1
            if depth < 0:
                return token.start()
    return -1


def _behind(tail: bytes, at: int) -> int:
    blank = _BLANK.match(tail, at)
    return blank.end() if blank else at


def _is_strict(members: bytes) -> bool:
    try:
        msgspec.json.decode(b"{%b}" % members.strip(b" \t\r\n,"), type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def unclosed(text: bytes) -> int:
    """How many more braces open in a text than close in it; it begins outside of any string."""
    bare = STRING.sub(b"", text)
    return bare.count(b"{") - bare.count(b"}")


def count_events(text: bytes) -> int:
    """How many events a text holds, by their look."""
    return sum(1 for _ in _EVENT.finditer(text))


@dataclass(slots=True)
class Tail:
    """Text behind traceEvents, as it comes; more than 64 MiB is only counted.

    Attributes:
        offset: of the first byte in the file; 0 before there is any.
    """

    offset: int = 0
    _pieces: list[bytes] = field(default_factory=list)
    _size: int = 0
    _events: int = 0

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def add(self, piece: bytes, offset: int) -> None:
        if not self._pieces:
            self.offset = offset
        self._size += len(piece)
        if self._size < _LARGEST:
            # The comma on which the blocks were cut.
            self._pieces.append(b"," + piece if self._pieces else piece)
        else:
            self._events += count_events(piece)

    def members(self, is_array: bool, damage: Damage) -> bytes:
        """The metadata; `damage` learns of what stands behind the document's end."""
        tail = b"".join(self._pieces)
        members, foreign = split(tail, is_array)
        if foreign >= 0 and self.offset + foreign not in damage.offsets.get("stray_text", []):
            events = count_events(tail[foreign:]) + self._events
            if events:
                damage.add("second_document", self.offset + foreign, events)
            else:
                damage.add("text_after_end", self.offset + foreign, self._size - foreign)
        elif self._size >= _LARGEST:
            damage.add("lost_metadata", self.offset + len(tail))
        elif not is_array and unclosed(tail) >= 0:
            damage.add("truncated", self.offset + len(tail))
        return members
