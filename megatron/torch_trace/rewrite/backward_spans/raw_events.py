# SPDX-License-Identifier: Apache-2.0
"""What drawing needs of a raw trace, taken out of the text as it streams by.

The text is Kineto's own, so an event is found by its lines and a number by its words, in the order
that Kineto has written for years: nothing is parsed, which takes a third of the time.
"""

from __future__ import annotations

import re
from array import array

_BETWEEN = b"\n  },\n"
_SLICE, _CATEGORY = b'  {\n    "ph": "X",', b'"cat": "'
_NUMBERED = b'"Sequence number": '
ENGINE = b"autograd::engine::evaluate_function: "
_HEAD = re.compile(
    rb'"name": "((?:[^"\\]|\\.)*)",\s+"pid": ([^,]+),\s+"tid": ([^,]+),\s+'
    rb'"ts": (\d+)(?:\.(\d+))?,\s+"dur": (\d+)(?:\.(\d+))?'
)
_SEQUENCE = re.compile(rb'"Sequence number": (\d+)')
_THREAD = re.compile(rb'"Fwd thread id": (\d+)')
_CORRELATION = re.compile(rb'"correlation": (\d+)')
_NONE = -1


class RawEvents:
    """Rows of flat numbers, and the texts that their codes stand for.

    Attributes:
        operators: start, end, name, track, sequence, forward thread; those with a number, and what
            autograd's engine runs.
        annotations: start, end, name, track.
        calls: start, track, correlation; runtime and driver calls.
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
            taker = takers.get(event[begin : event.find(b'"', begin)])
            if taker is not None:
                taker(event)

    def _operator(self, event: bytes) -> None:
        sequence = thread = _NONE
        if _NUMBERED in event:
            if found := _SEQUENCE.search(event):
                sequence = int(found[1])
            if found := _THREAD.search(event):
                thread = int(found[1])
        elif ENGINE not in event:
            return
        if head := _HEAD.search(event):
            self.operators.extend((*self._slice(head), sequence, thread))

    def _annotation(self, event: bytes) -> None:
        if head := _HEAD.search(event):
            self.annotations.extend(self._slice(head))

    def _call(self, event: bytes) -> None:
        if (head := _HEAD.search(event)) and (number := _CORRELATION.search(event, head.end())):
            start = _ns(head[4], head[5])
            self.calls.extend((start, self._track(head), int(number[1])))

    def _gpu_row(self, event: bytes) -> None:
        if (head := _HEAD.search(event)) and (number := _CORRELATION.search(event, head.end())):
            start = _ns(head[4], head[5])
            end = start + _ns(head[6], head[7])
            self.gpu.extend((start, end, self._track(head), int(number[1])))

    def _slice(self, head: re.Match[bytes]) -> tuple[int, int, int, int]:
        start = _ns(head[4], head[5])
        name = self.names.setdefault(head[1], len(self.names))
        return start, start + _ns(head[6], head[7]), name, self._track(head)

    def _track(self, head: re.Match[bytes]) -> int:
        return self.tracks.setdefault((head[2], head[3]), len(self.tracks))


def _ns(whole: bytes, fraction: bytes | None) -> int:
    return int(whole) * 1000 + (int(fraction.ljust(3, b"0")[:3]) if fraction else 0)
