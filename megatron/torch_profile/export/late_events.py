# SPDX-License-Identifier: Apache-2.0
"""What a profiler recorded after its window had ended: cut out of the raw trace as it streams by.

A profiler that is stopped beside training goes on until the stop reaches it. A mark in the trace,
on the same clock as everything else, says where the window ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

WINDOW_END = "torch_profile: end of the window"
"""The mark's name; the mark itself is cut out too."""
_MARK = f'"name": "{WINDOW_END}"'.encode()
_TIME = re.compile(rb'"ts": (\d+)(?:\.(\d+))?')
_BEFORE, _BEGIN, _END = b"\n", b"\n  {\n", b"\n  },\n"
_METADATA = b'"ph": "M"'
_CHUNK = 1 << 20
_OVERLAP = 1024
_LONGEST = 64 << 20
"""Text without the end of an event that is taken for another format, and left as it is."""


def window_end(raw: Path) -> re.Pattern[bytes] | None:
    """What times at and after the end of the window look like; None if no mark says where it is."""
    rest = b""
    with raw.open("rb") as file:
        while block := file.read(_CHUNK):
            text = rest + block
            if (at := text.find(_MARK)) >= 0:
                text += file.read(_OVERLAP)
                found = _TIME.search(text, at)
                return _not_before(found[1], found[2] or b"") if found else None
            rest = text[-_OVERLAP:]
    return None


def without_late(blocks: Iterable[bytes], late: re.Pattern[bytes]) -> Iterator[bytes]:
    """The text of a trace without the events that begin at or after the end of its window.

    Metadata stays, and so does the last event, which closes the list.

    Args:
        blocks: of the raw text.
        late: from `window_end`.
    """
    rest = b""
    for block in blocks:
        text = rest + block
        whole = text.rfind(_END) + len(_END)
        if whole < len(_END):
            rest = text if len(text) < _LONGEST else b""
            if not rest:
                yield text
            continue
        yield from _kept(text[:whole], late)
        # The next event's begin is found by the end of the line before it.
        rest = text[whole:]
    yield rest


def _kept(text: bytes, late: re.Pattern[bytes]) -> Iterator[bytes]:
    done = 0
    for found in late.finditer(text):
        if found.start() < done:
            continue
        begin = text.rfind(_BEGIN, done, found.start())
        begin = done if begin < 0 else begin + len(_BEFORE)
        end = text.index(_END, found.start()) + len(_END)
        if _METADATA in text[begin:end]:
            continue
        yield text[done:begin]
        done = end
    yield text[done:]


def _not_before(whole: bytes, fraction: bytes) -> re.Pattern[bytes]:
    """A pattern of the times that are not before one, told by digits: numbers need no parsing."""
    digits = len(whole)
    later = [rf"\d{{{digits + 1}}}"]
    for position, digit in enumerate(map(int, whole.decode())):
        if digit < 9:
            later.append(
                rf"{whole[:position].decode()}[{digit + 1}-9]\d{{{digits - position - 1}}}(?!\d)"
            )
    for position, digit in enumerate(map(int, fraction.decode())):
        if digit < 9:
            later.append(rf"{whole.decode()}\.{fraction[:position].decode()}[{digit + 1}-9]")
    later.append(rf"{whole.decode()}(?!\d)" if not fraction.strip(b"0") else "")
    later.append(rf"{whole.decode()}\.{fraction.decode()}" if fraction else "")
    return re.compile(rf'"ts": (?:{"|".join(filter(None, later))})'.encode())
