# SPDX-License-Identifier: Apache-2.0
"""What drawing needs of a raw trace, taken out of the text as it streams by.

The text is Kineto's own, so an event is found by its lines and a number by its words, in the order
that Kineto has written for years; nothing is parsed.
"""

from __future__ import annotations

import re
from array import array

_BETWEEN = b"\n  },\n"
_SLICE, _CATEGORY = b'  {\n    "ph": "X",', b'"cat": "'
ENGINE = b"autograd::engine::evaluate_function: "
# From the end of the category on.
_HEAD = re.compile(
    rb'",\s+"name": "([^"\\]*(?:\\.[^"\\]*)*)",\s+"pid": ([^,]+),\s+"tid": ([^,]+),\s+'
    rb'"ts": (\d+)(?:\.(\d+))?,\s+"dur": (\d+)(?:\.(\d+))?'
)
_SEQUENCE, _THREAD = b'"Sequence number": ', b'"Fwd thread id": '
_CORRELATION = b'"correlation": '
_DIGITS = re.compile(rb"\d+")
_LAUNCH, _MEMORY = b"aunch", b"Mem"
_NONE = -1


class RawEvents:
    """Rows of flat numbers, and the texts that their codes stand for.

    Attributes:
        operators: start, end, name, track, sequence, forward thread; those with a number, and what
            autograd's engine runs.
        annotations: start, end, name, track.
        calls: start, track, correlation; runtime and driver calls that may launch something.
        gpu: start, end, track, correlation; kernels, copies and memsets.
        names: as written, by code.
        tracks: process and thread, or device and stream, as written, by code.
    """

    def __init__(self) -> None:
        self.operators = array("q")
        self.annotations = array("q")
        self.calls = array("q")
        self.gpu = array("q")
        self.names: dict[bytes, int] = {}
        self.tracks: dict[tuple[bytes, bytes], int] = {}
        self._takers = {
            b"cpu_op": self._operator,
            b"user_annotation": self._annotation,
            **dict.fromkeys((b"cuda_runtime", b"cuda_driver"), self._call),
            **dict.fromkeys((b"kernel", b"gpu_memcpy", b"gpu_memset"), self._gpu_row),
        }

    def add(self, text: bytes) -> None:
        """Take what is wanted of whole events, which end at the end of a line."""
        takers = self._takers
        for event in text.split(_BETWEEN):
            if not event.startswith(_SLICE):
                # What comes before the first event stands before it in the same piece.
                at = event.find(_SLICE)
                if at < 0:
                    continue
                event = event[at:]
            begin = event.find(_CATEGORY) + len(_CATEGORY)
            end = event.find(b'"', begin)
            taker = takers.get(event[begin:end])
            if taker is not None:
                taker(event, end)

    def _operator(self, event: bytes, begin: int) -> None:
        sequence = _number(event, _SEQUENCE)
        if (sequence != _NONE or ENGINE in event) and (head := _HEAD.match(event, begin)):
            self.operators.extend((*self._slice(head), sequence, _number(event, _THREAD)))

    def _annotation(self, event: bytes, begin: int) -> None:
        if head := _HEAD.match(event, begin):
            self.annotations.extend(self._slice(head))

    def _call(self, event: bytes, begin: int) -> None:
        if not (_LAUNCH in event or _MEMORY in event):
            return
        correlation = _number(event, _CORRELATION)
        if correlation != _NONE and (head := _HEAD.match(event, begin)):
            self.calls.extend((_ns(head[4], head[5]), self._track(head), correlation))

    def _gpu_row(self, event: bytes, begin: int) -> None:
        correlation = _number(event, _CORRELATION)
        if correlation != _NONE and (head := _HEAD.match(event, begin)):
            start = _ns(head[4], head[5])
            end = start + _ns(head[6], head[7])
            self.gpu.extend((start, end, self._track(head), correlation))

    def _slice(self, head: re.Match[bytes]) -> tuple[int, int, int, int]:
        start = _ns(head[4], head[5])
        name = self.names.setdefault(head[1], len(self.names))
        return start, start + _ns(head[6], head[7]), name, self._track(head)

    def _track(self, head: re.Match[bytes]) -> int:
        return self.tracks.setdefault((head[2], head[3]), len(self.tracks))


def _number(event: bytes, key: bytes) -> int:
    # A pattern would look at every character of the shapes before it.
    at = event.find(key)
    digits = _DIGITS.match(event, at + len(key)) if at >= 0 else None
    return int(digits[0]) if digits else _NONE


def _ns(whole: bytes, fraction: bytes | None) -> int:
    return int(whole) * 1000 + (int(fraction.ljust(3, b"0")[:3]) if fraction else 0)
