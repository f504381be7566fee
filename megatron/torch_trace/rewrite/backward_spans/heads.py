# SPDX-License-Identifier: Apache-2.0
"""Names and tracks of thousands of events, as codes: the text between category and time.

cpu_op", "name": "aten::mm", "pid": 1894, "tid": 1894
"""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np

from megatron.torch_trace.columns.intervals import Ints, ints
from megatron.torch_trace.rewrite.backward_spans.pieces import LAUNCH_KERNEL
from megatron.torch_trace.rewrite.backward_spans.raw_events import (
    ANNOTATION,
    CALL,
    KINDS,
    LAUNCH,
    MEMORY,
    NONE,
    OPERATOR,
    RawEvents,
)
from megatron.torch_trace.rewrite.backward_spans.text_words import BEFORE, TextWords

_HEAD = re.compile(
    rb'(\w+)",\s+"name": "([^"\\]*(?:\\.[^"\\]*)*)",\s+"pid": ([^,]+),\s+"tid": ([^,]+)'
)
_SIZES = (72, 104, BEFORE)
"""Letters that heads have room in; from an end of a head on 40 letters before it are the same."""
_NOT_WANTED = (NONE, NONE, 0)


class OtherLayoutError(Exception):
    """An event is not laid out as Kineto lays events out."""


class Heads:
    """Gives the codes, and remembers them.

    Args:
        events: has the codes of all names and tracks.
    """

    def __init__(self, events: RawEvents) -> None:
        self._events = events
        self._known: dict[bytes, int] = {}
        self._codes: list[tuple[int, int, int]] = []
        self._columns = [ints([])] * 3

    def codes(
        self, text: bytes, words: TextWords, begin: Ints, end: Ints, on_gpu: int
    ) -> tuple[Ints, Ints, int]:
        """Codes of names and tracks, NONE of a call that launches nothing; how many launch kernels.

        Args:
            text: of the events.
            words: the same.
            begin: the first letter of the category of each event.
            end: the comma behind its thread.
            on_gpu: from here on events are GPU rows.

        Raises:
            OtherLayoutError: there is no such head.
        """
        # As many letters for many heads are quicker than those of each. What stands before a head
        # that is a little shorter is the same for all.
        keys = words.before(end, _SIZES[0])
        # Names of kernels are long, and only their tracks are wanted, which are at the end.
        length = (end - begin)[:on_gpu]
        for shorter, size in pairwise(_SIZES):
            rows = np.flatnonzero((length > shorter) & (length <= size))
            for row, key in zip(rows.tolist(), words.before(end[rows], size), strict=True):
                keys[row] = key
        for row in np.flatnonzero(length > _SIZES[-1]).tolist():
            keys[row] = text[begin[row] : end[row]]
        try:
            found = self._found(keys)
        except KeyError:
            # In the order of the text, as codes are given elsewhere.
            for row in np.argsort(begin).tolist():
                if keys[row] not in self._known:
                    self._known[keys[row]] = len(self._codes)
                    self._codes.append(self._code(text[begin[row] : end[row]]))
            self._columns = [ints(column) for column in zip(*self._codes, strict=True)]
            found = self._found(keys)
        name, track, launches = (column[found] for column in self._columns)
        return name, track, int(launches.sum())

    def _found(self, keys: list[bytes]) -> Ints:
        return np.fromiter(map(self._known.__getitem__, keys), dtype=np.int64, count=len(keys))

    def _code(self, head: bytes) -> tuple[int, int, int]:
        found = _HEAD.fullmatch(head)
        if found is None:
            raise OtherLayoutError
        category, name, process, thread = found.groups()
        kind = KINDS.get(category)
        if kind is None or (kind == CALL and not (LAUNCH in name or MEMORY in name)):
            return _NOT_WANTED
        code = self._events.name(name) if kind in (OPERATOR, ANNOTATION) else NONE
        launches = kind == CALL and LAUNCH_KERNEL in name
        return code, self._events.track(process, thread), int(launches)
