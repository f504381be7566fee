# SPDX-License-Identifier: Apache-2.0
"""Thousands of events of a raw trace at once, where all of them are laid out as Kineto does it.

      {
        "ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 7,
        "ts": 4957491986190.818, "dur": 56.193,
        "args": {
          "External id": 348675,"Sequence number": 141201, "Fwd thread id": 0, "Ev Idx": 2
        }
      },

A brace at the end of a line begins an event or its arguments, and from there on everything has its
place: the category behind, the times before. What stands at a place is compared with what should,
for each event; where one is laid out in another way, the whole text is left to `single_events`.
Newer torches break the first two lines at each key.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.columns.intervals import Ints, ints
from megatron.torch_trace.rewrite.backward_spans.correlations import Correlations
from megatron.torch_trace.rewrite.backward_spans.heads import Heads, OtherLayoutError
from megatron.torch_trace.rewrite.backward_spans.pieces import Counts
from megatron.torch_trace.rewrite.backward_spans.raw_events import (
    ANNOTATION,
    CALL,
    ENGINE,
    GPU,
    KINDS,
    NONE,
    OPERATOR,
    SEQUENCE,
    THREAD,
    RawEvents,
)
from megatron.torch_trace.rewrite.backward_spans.single_events import add_one_by_one, number
from megatron.torch_trace.rewrite.backward_spans.text_words import (
    WORD,
    TextWords,
    Truths,
    Words,
    fraction,
    word,
)

_NEWLINE, _COMMA, _SLICE, _PHASE = b"\n,Xp"
_NO_SLICE, _NEAR = re.compile(rb'"ph": "[Mi]"'), 256
_CATEGORY = b'"cat": "'
_BROKEN = len(b"\n   ")
"""So much longer is a place where newer torches break the line."""
_NAME = len(b'cpu_op", "name": "')
_ARGUMENTS, _DURATION, _TIME = b',\n    "args": {', b', "dur": ', b',\n    "ts": '
_FORWARD_THREAD = b", " + THREAD
# A point, three digits and a comma.
_FRACTION, _FRACTION_MASK = word(b".000,\0\0\0"), word(b"\xff\xf0\xf0\xf0\xff\0\0\0")
_WRITTEN = {
    kind: [word((name + b'", ')[:WORD]) for name, one in KINDS.items() if one == kind]
    for kind in (OPERATOR, ANNOTATION, CALL, GPU)
}
"""How the categories of a kind begin."""
_KERNEL = word(b'kernel",')


@dataclass(slots=True)
class _Slices:
    """Where things are, for each event with a duration.

    Args:
        begin: its brace.
        until: the brace of the event behind it.
        category: the first letter of its category.
        arguments: the brace of its arguments, or where the next event begins.
        broken: by how much a broken line moves what stands behind.
    """

    begin: Ints
    until: Ints
    category: Ints
    arguments: Ints
    broken: Ints


class EventColumns:
    """Takes what is wanted of text, a piece with whole events at a time.

    Args:
        events: where it is put.
    """

    def __init__(self, events: RawEvents) -> None:
        self._events = events
        self._room = np.empty(0, dtype=np.uint64)
        self._heads = Heads(events)
        self._correlations = {CALL: Correlations(), GPU: Correlations()}

    def add(self, text: bytes, begin: int, end: int) -> Counts | None:
        """Take what is wanted of whole events.

        Args:
            text: `BEFORE` letters or more, these events, and `BEYOND` letters or more.
            begin: of the first event, behind the end of a line.
            end: of the last one, behind the end of its line.

        Returns:
            How many they are; None where they were looked at one by one.
        """
        if len(self._room) * WORD <= end - begin:
            self._room = np.empty((end - begin) // WORD + 1, dtype=np.uint64)
        try:
            return self._add(text, TextWords(text, begin, end, self._room))
        except OtherLayoutError:
            add_one_by_one(self._events, text[begin:end])
            return None

    def _add(self, text: bytes, words: TextWords) -> Counts:
        slices, events = _slices(text, words)
        written = words.words(slices.category)
        operators, sequence_at = _numbered(words, slices, _of_kind(written, OPERATOR))
        annotations = _of_kind(written, ANNOTATION)
        calls, called_at = self._linked(text, words, slices, written, CALL)
        on_gpu, launched_at = self._linked(text, words, slices, written, GPU)
        rows = np.concatenate((operators, annotations, calls, on_gpu))
        start, duration, head_end = _times(words, slices.arguments[rows])
        name, track, launches = self._heads.codes(
            text, words, slices.category[rows], head_end, len(rows) - len(on_gpu)
        )
        end = start + duration
        first, second, third = np.cumsum((len(operators), len(annotations), len(calls))).tolist()
        sequences = _sequences(text, words, slices, operators, sequence_at)
        here = slice(first)
        found = [start[here], end[here], name[here], track[here], *sequences]
        self._events.add(OPERATOR, np.array(found))
        here = slice(first, second)
        found = [start[here], end[here], name[here], track[here]]
        self._events.add(ANNOTATION, np.array(found))
        launching = np.flatnonzero(track[second:third] != NONE)
        found = [one[second:third][launching] for one in (start, track)]
        found.append(_present(*words.numbers_from(called_at[launching])))
        self._events.add(CALL, np.array(found))
        found = [one[third:] for one in (start, end, track)]
        found.append(_present(*words.numbers_from(launched_at)))
        self._events.add(GPU, np.array(found))
        return Counts(events, int(np.count_nonzero(written == _KERNEL)), launches)

    def _linked(
        self, text: bytes, words: TextWords, slices: _Slices, written: Words, kind: int
    ) -> tuple[Ints, Ints]:
        """Calls or GPU rows with a number that links them, and where it begins."""
        rows = _of_kind(written, kind)
        if not len(rows):
            return rows, rows
        at = self._correlations[kind].places(
            text, words, slices.arguments[rows], slices.until[rows]
        )
        linked = np.flatnonzero(at != NONE)
        return rows[linked], at[linked]


def _slices(text: bytes, words: TextWords) -> tuple[_Slices, int]:
    """The events with a duration, and how many events there are."""
    letters = words.letters
    braces = words.places(b"{")
    begins, ends = letters[braces - len(b"\n  ")] == _NEWLINE, letters[braces + 1] == _NEWLINE
    if (begins > ends).any():  # an event in one line
        raise OtherLayoutError
    braces, begins = braces[ends], begins[ends]
    end = words.end + len(b"  {") - 1
    rows = np.flatnonzero(begins)
    begin = braces[rows]
    until = np.append(begin[1:], end)
    behind = np.append(braces[1:], end)[rows]
    # Only metadata and marks do not begin with what they are.
    for at in begin[letters[begin + len(b'{\n    "')] != _PHASE].tolist():
        if not _NO_SLICE.search(text, at, at + _NEAR):
            raise OtherLayoutError
    rows = np.flatnonzero(letters[begin + len(b'{\n    "ph": "')] == _SLICE)
    begin = begin[rows]
    category = begin + len(b'{\n    "ph": "X", ' + _CATEGORY)
    broken = np.zeros(len(begin), dtype=np.int64)
    moved = np.flatnonzero(words.words(category - WORD) != word(_CATEGORY))
    if len(moved):
        category[moved] += _BROKEN
        broken[moved] = _BROKEN
        if (words.words(category[moved] - WORD) != word(_CATEGORY)).any():
            raise OtherLayoutError
    return _Slices(begin, until[rows], category, behind[rows], broken), len(until)


def _of_kind(written: Words, kind: int) -> Ints:
    """Which events are, by how their categories begin."""
    found = written == _WRITTEN[kind][0]
    for other in _WRITTEN[kind][1:]:
        found |= written == other
    return ints(np.flatnonzero(found))


def _numbered(words: TextWords, slices: _Slices, operators: Ints) -> tuple[Ints, Ints]:
    """Operators with a sequence number, and where it begins; and autograd's engine at work, NONE
    where it has none."""
    if not len(operators):
        return operators, operators
    keys = words.places(b"q") - SEQUENCE.index(b"q")
    keys = keys[words.have(keys, SEQUENCE)]
    of = np.searchsorted(slices.begin, keys, side="right") - 1
    inside = np.flatnonzero((of >= 0) & (keys < slices.until[of]))
    keys, of = keys[inside], of[inside]
    if not (np.diff(of) > 0).all():
        raise OtherLayoutError
    at = np.full(len(slices.begin), NONE)
    at[of] = keys + len(SEQUENCE)
    at = at[operators]
    wanted = at != NONE
    without = np.flatnonzero(~wanted)
    name = slices.category[operators[without]] + _NAME + slices.broken[operators[without]]
    engine = words.words(name) == word(ENGINE[:WORD])
    engine[engine] = words.have(name[engine], ENGINE)
    wanted[without] = engine
    return operators[wanted], at[wanted]


def _times(words: TextWords, brace: Ints) -> tuple[Ints, Ints, Ints]:
    """Starts and durations in ns, and where the line before them ends.

    Args:
        brace: of the arguments, which are behind.
    """
    usual = words.words(brace - WORD) == word(_ARGUMENTS[-WORD - 1 : -1])
    duration, begin, right = _ns(words, brace + 1 - len(_ARGUMENTS))
    usual &= right & (words.words(begin - WORD) == word(_DURATION[-WORD:]))
    comma = begin - len(_DURATION)
    broken = words.letters[comma] != _COMMA
    if broken.any():
        comma[broken] -= _BROKEN
    start, begin, right = _ns(words, comma)
    usual &= right & (words.words(begin - WORD) == word(_TIME[-WORD:]))
    if not usual.all():
        raise OtherLayoutError
    return start, duration, begin - len(_TIME)


def _ns(words: TextWords, end: Ints) -> tuple[Ints, Ints, Truths]:
    """Numbers with three digits behind the point that end at commas, where they begin, and
    whether they are such."""
    point = end - len(b".000")
    tail = words.words(point)
    usual = (tail & _FRACTION_MASK) == _FRACTION
    whole, width = words.numbers_to(point)
    return whole * 1000 + fraction(tail), point - width, usual & (width > 0)


def _sequences(
    text: bytes, words: TextWords, slices: _Slices, rows: Ints, at: Ints
) -> tuple[Ints, Ints]:
    """Sequence numbers and numbers of forward threads."""
    if not len(rows):
        return rows, rows
    sequence, width = words.numbers_from(at)
    _present(sequence, np.where(at == NONE, 1, width))
    behind = at + width
    usual = words.have(behind, _FORWARD_THREAD)
    thread = words.numbers_from(behind + len(_FORWARD_THREAD))[0]
    for place in np.flatnonzero(~usual).tolist():
        row = rows[place]
        thread[place] = number(text[slices.begin[row] : slices.until[row]], THREAD)
    return np.where(at == NONE, NONE, sequence), thread


def _present(numbers: Ints, width: Ints) -> Ints:
    """The numbers, where each has a digit."""
    if not width.all():
        raise OtherLayoutError
    return numbers
