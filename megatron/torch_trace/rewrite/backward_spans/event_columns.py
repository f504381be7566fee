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

from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.columns.intervals import Ints, ints
from megatron.torch_trace.rewrite.backward_spans.correlations import Correlations
from megatron.torch_trace.rewrite.backward_spans.heads import Heads, OtherLayoutError
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
    PADDING,
    WORD,
    TextWords,
    Truths,
    word,
)

_NEWLINE, _COMMA = b"\n,"
_BEGIN, _SLICE, _CATEGORY = b"\n  {\n   ", b'"ph": "X"', b' "cat": "'
_BEHIND, _LINE_END = word(b"\0\0\0\0\xff\0\0\0"), word(b"\0\0\0\0\n\0\0\0")
_BROKEN = len(b"\n   ")
"""So much longer is a place where newer torches break the line."""
_NAME = len(b'cpu_op", "name": "')
_ARGUMENTS, _DURATION, _TIME = b',\n    "args": {', b' "dur": ', b',\n    "ts": '
_FORWARD_THREAD = b", " + THREAD
# A point, three digits and a comma.
_FRACTION, _FRACTION_MASK = word(b".000,\0\0\0"), word(b"\xff\xf0\xf0\xf0\xff\0\0\0")


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

    def of(self, rows: Ints) -> _Slices:
        """Some of them."""
        return _Slices(
            self.begin[rows],
            self.until[rows],
            self.category[rows],
            self.arguments[rows],
            self.broken[rows],
        )


class EventColumns:
    """Takes what is wanted of text, a piece with whole events at a time.

    Args:
        events: where it is put.
    """

    def __init__(self, events: RawEvents) -> None:
        self._events = events
        self._room = np.empty(0, dtype=bool)
        self._heads = Heads(events)
        self._correlations = Correlations()

    def add(self, *text: bytes) -> None:
        """Take what is wanted of whole events, which end at the end of a line.

        Args:
            text: in one piece or in several.
        """
        padded = b"".join((b"\n", *text, PADDING))
        if len(self._room) < len(padded):
            self._room = np.empty(2 * len(padded), dtype=bool)
        try:
            self._add(padded, TextWords(padded, self._room))
        except OtherLayoutError:
            add_one_by_one(self._events, b"".join(text))

    def _add(self, text: bytes, words: TextWords) -> None:
        slices = _slices(words)
        kind = _kinds(words, slices)
        numbered, sequence_at = _numbered(words, slices)
        wanted = (kind != NONE) & ((kind != OPERATOR) | numbered)
        without = np.flatnonzero((kind == OPERATOR) & ~numbered)
        wanted[without] = _engine(words, slices, without)
        correlation_at = np.full(len(kind), NONE, dtype=np.int64)
        linked = np.flatnonzero((kind == CALL) | (kind == GPU))
        of = slices.of(linked)
        correlation_at[linked] = self._correlations.places(text, words, of.arguments, of.until)
        wanted[linked] &= correlation_at[linked] != NONE
        rows = np.flatnonzero(wanted)
        kind, sequence_at, correlation_at = kind[rows], sequence_at[rows], correlation_at[rows]
        slices = slices.of(rows)
        start, duration, head_end = _times(words, slices)
        name, track = self._heads.codes(text, words, kind, slices.category, head_end)
        kept = track != NONE
        found: dict[int, list[Ints]] = {}
        for one, columns in (
            (OPERATOR, (start, start + duration, name, track)),
            (ANNOTATION, (start, start + duration, name, track)),
            (CALL, (start, track)),
            (GPU, (start, start + duration, track)),
        ):
            here = np.flatnonzero((kind == one) & kept)
            found[one] = [ints(column[here]) for column in columns]
            if one == OPERATOR:
                found[one] += _sequences(text, words, sequence_at[here], slices.of(here))
            elif one in (CALL, GPU):
                found[one].append(_present(*words.numbers_from(correlation_at[here])))
        for one, wanted_columns in found.items():
            self._events.add(one, np.array(wanted_columns))


def _slices(words: TextWords) -> _Slices:
    braces = words.places(b"{")
    around = words.words(braces - len(_BEGIN) // 2 + 1)
    rows = np.flatnonzero((around & _BEHIND) == _LINE_END)
    braces, around = braces[rows], around[rows]
    end = len(words.letters) + len(b"  {") - 1
    rows = np.flatnonzero(around == word(_BEGIN))
    begin = braces[rows]
    until = np.append(begin[1:], end)
    behind = np.append(braces[1:], end)[rows]
    rows = np.flatnonzero(words.have(begin + len(b"{\n    "), _SLICE))
    begin = begin[rows]
    category = begin + len(b'{\n    "ph": "X",' + _CATEGORY)
    broken = np.where(words.letters[category - len(_CATEGORY)] == _NEWLINE, _BROKEN, 0)
    category += broken
    if not words.have(category - len(_CATEGORY), _CATEGORY).all():
        raise OtherLayoutError
    return _Slices(begin, until[rows], category, behind[rows], broken)


def _kinds(words: TextWords, slices: _Slices) -> Ints:
    found = np.full(len(slices.begin), NONE, dtype=np.int64)
    written = words.words(slices.category)
    for category, kind in KINDS.items():
        found[written == word((category + b'", ')[:WORD])] = kind
    return found


def _engine(words: TextWords, slices: _Slices, rows: Ints) -> Truths:
    """Which of some operators are autograd's engine at work."""
    name = slices.category[rows] + _NAME + slices.broken[rows]
    found = words.have(name, ENGINE[:WORD])
    found[found] = words.have(name[found], ENGINE)
    return found


def _numbered(words: TextWords, slices: _Slices) -> tuple[Truths, Ints]:
    """Which events have a sequence number, and where it begins."""
    numbered, at = np.zeros(len(slices.begin), dtype=bool), np.full(len(slices.begin), NONE)
    keys = words.places(b"q") - SEQUENCE.index(b"q")
    keys = keys[words.have(keys, SEQUENCE)]
    if len(keys) and len(at):
        of = np.searchsorted(slices.begin, keys, side="right") - 1
        inside = (of >= 0) & (keys < slices.until[of])
        keys, of = keys[inside], of[inside]
        if not (np.diff(of) > 0).all():
            raise OtherLayoutError
        numbered[of], at[of] = True, keys + len(SEQUENCE)
    return numbered, at


def _times(words: TextWords, slices: _Slices) -> tuple[Ints, Ints, Ints]:
    """Starts and durations in ns, and where the line before them ends."""
    letters = words.letters
    comma = slices.arguments - len(_ARGUMENTS) + 1
    usual = words.have(comma, _ARGUMENTS)
    duration, begin, right = _ns(words, comma)
    usual &= right & words.have(begin - len(_DURATION), _DURATION)
    comma = begin - len(_DURATION) - 1
    comma = np.where(letters[comma] == _COMMA, comma, comma - _BROKEN)
    start, begin, right = _ns(words, comma)
    usual &= right & words.have(begin - len(_TIME), _TIME)
    if not usual.all():
        raise OtherLayoutError
    return start, duration, begin - len(_TIME)


def _ns(words: TextWords, end: Ints) -> tuple[Ints, Ints, Truths]:
    """Numbers with three digits behind the point that end at commas, where they begin, and
    whether they are such."""
    tail = words.words(end - 4)
    usual = (tail & _FRACTION_MASK) == _FRACTION
    whole, width = words.numbers_to(end - 4)
    found = whole * 1000
    for place, times in ((1, 100), (2, 10), (3, 1)):
        found += ((tail >> np.uint64(8 * place)) & np.uint64(0xF)).astype(np.int64) * times
    return found, end - 4 - width, usual & (width > 0)


def _sequences(text: bytes, words: TextWords, at: Ints, slices: _Slices) -> list[Ints]:
    """Sequence numbers and numbers of forward threads."""
    sequence, width = words.numbers_from(at)
    _present(sequence, np.where(at == NONE, 1, width))
    behind = at + width
    usual = words.have(behind, _FORWARD_THREAD)
    thread = words.numbers_from(behind + len(_FORWARD_THREAD))[0]
    for row in np.flatnonzero(~usual).tolist():
        event = text[slices.begin[row] : slices.until[row]]
        thread[row] = number(event, THREAD)
    return [np.where(at == NONE, NONE, sequence), thread]


def _present(numbers: Ints, width: Ints) -> Ints:
    """The numbers, where each has a digit."""
    if not width.all():
        raise OtherLayoutError
    return numbers
