# SPDX-License-Identifier: Apache-2.0
"""Events of a raw trace one by one: however Kineto lays them out, and slowly.

An event is found by its lines and a number by its words; nothing is parsed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable

import numpy as np

from megatron.torch_trace.rewrite.backward_spans.raw_events import (
    ANNOTATION,
    CALL,
    CORRELATION,
    ENGINE,
    GPU,
    KINDS,
    LAUNCH,
    MEMORY,
    NONE,
    OPERATOR,
    SEQUENCE,
    THREAD,
    RawEvents,
)

_BETWEEN = b"\n  },\n"
_SLICE, _CATEGORY = b'  {\n    "ph": "X",', b'"cat": "'
# From the end of the category on.
_HEAD = re.compile(
    rb'",\s+"name": "([^"\\]*(?:\\.[^"\\]*)*)",\s+"pid": ([^,]+),\s+"tid": ([^,]+),\s+'
    rb'"ts": (\d+)(?:\.(\d+))?,\s+"dur": (\d+)(?:\.(\d+))?'
)
_DIGITS = re.compile(rb"\d+")
_Row = tuple[int, ...]


def add_one_by_one(events: RawEvents, text: bytes) -> None:
    """Take what is wanted of whole events, which end at the end of a line."""
    rows: dict[int, list[_Row]] = defaultdict(list)
    for event in text.split(_BETWEEN):
        if not event.startswith(_SLICE):
            # What comes before the first event stands before it in the same piece.
            at = event.find(_SLICE)
            if at < 0:
                continue
            event = event[at:]
        begin = event.find(_CATEGORY) + len(_CATEGORY)
        end = event.find(b'"', begin)
        kind = KINDS.get(event[begin:end])
        if kind is not None and (row := _TAKERS[kind](events, event, end)) is not None:
            rows[kind].append(row)
    for kind, found in rows.items():
        events.add(kind, np.array(found, dtype=np.int64).T)


def number(event: bytes, key: bytes) -> int:
    """The number behind a key; NONE if there is none."""
    # A pattern would look at every character of the shapes before it.
    at = event.find(key)
    digits = _DIGITS.match(event, at + len(key)) if at >= 0 else None
    return int(digits[0]) if digits else NONE


def _operator(events: RawEvents, event: bytes, begin: int) -> _Row | None:
    sequence = number(event, SEQUENCE)
    if (sequence != NONE or ENGINE in event) and (head := _HEAD.match(event, begin)):
        return (*_slice(events, head), sequence, number(event, THREAD))
    return None


def _annotation(events: RawEvents, event: bytes, begin: int) -> _Row | None:
    head = _HEAD.match(event, begin)
    return _slice(events, head) if head else None


def _call(events: RawEvents, event: bytes, begin: int) -> _Row | None:
    if not (LAUNCH in event or MEMORY in event):
        return None
    correlation = number(event, CORRELATION)
    if correlation != NONE and (head := _HEAD.match(event, begin)):
        return _ns(head[4], head[5]), events.track(head[2], head[3]), correlation
    return None


def _gpu_row(events: RawEvents, event: bytes, begin: int) -> _Row | None:
    correlation = number(event, CORRELATION)
    if correlation != NONE and (head := _HEAD.match(event, begin)):
        start = _ns(head[4], head[5])
        end = start + _ns(head[6], head[7])
        return start, end, events.track(head[2], head[3]), correlation
    return None


_TAKERS: dict[int, Callable[[RawEvents, bytes, int], _Row | None]] = {
    OPERATOR: _operator,
    ANNOTATION: _annotation,
    CALL: _call,
    GPU: _gpu_row,
}


def _slice(events: RawEvents, head: re.Match[bytes]) -> _Row:
    start = _ns(head[4], head[5])
    end = start + _ns(head[6], head[7])
    return start, end, events.name(head[1]), events.track(head[2], head[3])


def _ns(whole: bytes, fraction: bytes | None) -> int:
    return int(whole) * 1000 + (int(fraction.ljust(3, b"0")[:3]) if fraction else 0)
