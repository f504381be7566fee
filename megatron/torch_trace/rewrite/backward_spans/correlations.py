# SPDX-License-Identifier: Apache-2.0
"""Where the numbers are that link calls and GPU rows, among the arguments of thousands of events.

Kineto writes the arguments of a kind always in the same order, and all but a few are as long as
those of the event before: how far the number is from their begin has few answers.
"""

from __future__ import annotations

import numpy as np

from megatron.torch_trace.columns.intervals import Ints, ints
from megatron.torch_trace.rewrite.backward_spans.raw_events import CORRELATION, NONE
from megatron.torch_trace.rewrite.backward_spans.text_words import WORD, TextWords, Truths, word

_MOST = 64
_MARK_AT = 2
_MARK = word(CORRELATION[_MARK_AT : _MARK_AT + WORD])


class Correlations:
    """Finds them, and remembers where they were."""

    def __init__(self) -> None:
        self._distances: list[int] = []

    def places(self, text: bytes, words: TextWords, arguments: Ints, until: Ints) -> Ints:
        """Where each number begins, NONE where an event has none.

        Args:
            text: of the events.
            words: the same.
            arguments: where those of each event begin.
            until: where the next event begins.
        """
        found = np.full(len(arguments), NONE, dtype=np.int64)
        left = ints(np.arange(len(arguments)))
        useful = []
        for distance in self._distances:
            if not len(left):
                break
            there = self._there(words, arguments[left] + distance, until[left])
            if there.any():
                useful.append(distance)
                found[left[there]] = arguments[left[there]] + distance + len(CORRELATION)
                left = left[~there]
        while len(left):
            first = int(left[0])
            at = text.find(CORRELATION, int(arguments[first]), int(until[first]))
            left = left[1:]
            if at < 0:
                continue
            found[first] = at + len(CORRELATION)
            distance = at - int(arguments[first])
            there = self._there(words, arguments[left] + distance, until[left])
            found[left[there]] = arguments[left[there]] + distance + len(CORRELATION)
            left = left[~there]
            useful.append(distance)
        rest = [one for one in self._distances if one not in useful]
        self._distances = (useful + rest)[:_MOST]
        return found

    @staticmethod
    def _there(words: TextWords, at: Ints, until: Ints) -> Truths:
        found: Truths = words.words(np.minimum(at, until) + _MARK_AT) == _MARK
        return found & (at < until)
