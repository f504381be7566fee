# SPDX-License-Identifier: Apache-2.0
"""Names and tracks of thousands of events, as codes: the text between category and time.

cpu_op", "name": "aten::mm", "pid": 1894, "tid": 1894
"""

from __future__ import annotations

import re

import numpy as np

from megatron.torch_trace.columns.intervals import Ints, ints
from megatron.torch_trace.rewrite.backward_spans.raw_events import (
    ANNOTATION,
    CALL,
    GPU,
    KINDS,
    LAUNCH,
    MEMORY,
    NONE,
    OPERATOR,
    RawEvents,
)
from megatron.torch_trace.rewrite.backward_spans.text_words import WORD, TextWords, Words

_HEAD = re.compile(
    rb'(\w+)",\s+"name": "([^"\\]*(?:\\.[^"\\]*)*)",\s+"pid": ([^,]+),\s+"tid": ([^,]+)'
)
_TRACK = 6 * WORD
"""Letters that hold a process and a thread, or a device and a stream."""
_TAIL = re.compile(rb'",\s+"pid": ([^,]+),\s+"tid": ([^,]+)\Z')
_NOT_WANTED = (NONE, NONE)
_FACTOR, _SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(29)


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
        self._codes: list[tuple[int, int]] = []

    def codes(
        self, text: bytes, words: TextWords, kind: Ints, begin: Ints, end: Ints
    ) -> tuple[Ints, Ints]:
        """Codes of names and tracks; NONE of a call that launches nothing.

        Args:
            text: of the events.
            words: the same.
            kind: of each event.
            begin: the first letter of its category.
            end: the comma behind its thread.

        Raises:
            OtherLayoutError: there is no such head.
        """
        # Of GPU rows only the track is wanted, and names of kernels are long.
        begin = np.where(kind == GPU, end - _TRACK, begin)
        # Calls and GPU rows have few heads; names of operators are many, and quicker one by one.
        like = ints(np.arange(len(kind)))
        few = np.flatnonzero((kind == GPU) | (kind == CALL))
        like[few] = few[_first_alike(words, begin[few], end[few])]
        rows = np.flatnonzero(like == np.arange(len(kind)))
        places = zip(begin[rows].tolist(), end[rows].tolist(), strict=True)
        heads = [text[first:last] for first, last in places]
        found = np.zeros(len(kind), dtype=np.int64)
        found[rows] = self._numbers(heads)
        codes = ints(self._codes).reshape(-1, 2)[found[like]]
        return ints(codes[:, 0]), ints(codes[:, 1])

    def _numbers(self, heads: list[bytes]) -> list[int]:
        known = self._known
        try:
            return list(map(known.__getitem__, heads))
        except KeyError:
            for head in heads:
                if head not in known:
                    self._codes.append(self._code(head))
                    known[head] = len(self._codes) - 1
            return list(map(known.__getitem__, heads))

    def _code(self, head: bytes) -> tuple[int, int]:
        found = _HEAD.fullmatch(head)
        if found is None:
            tail = _TAIL.search(head)
            if tail is None:
                raise OtherLayoutError
            return NONE, self._events.track(*tail.groups())
        category, name, process, thread = found.groups()
        kind = KINDS.get(category)
        if kind is None or (kind == CALL and not (LAUNCH in name or MEMORY in name)):
            return _NOT_WANTED
        code = self._events.name(name) if kind in (OPERATOR, ANNOTATION) else NONE
        return code, self._events.track(process, thread)


def _first_alike(words: TextWords, begin: Ints, end: Ints) -> Ints:
    """For each row the first one with the same text, looked at in words from its end on."""
    columns: list[Words] = []
    length = end - begin
    mixed = length.astype(np.uint64)
    for behind in range(WORD, int(length.max(initial=0)) + WORD, WORD):
        # What is before the begin of a call is the same for all: the key of the category.
        column = np.where(length > behind - WORD, words.words(end - behind), np.uint64(0))
        mixed = (mixed ^ column) * _FACTOR
        mixed ^= mixed >> _SHIFT
        columns.append(column)
    _, first, group = np.unique(mixed, return_index=True, return_inverse=True)
    found = ints(first[group])
    for column in (length, *columns):
        if not np.array_equal(column[found], column):
            raise OtherLayoutError
    return found
