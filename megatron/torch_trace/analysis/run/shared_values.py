# SPDX-License-Identifier: Apache-2.0
"""Texts and columns that are equal on many ranks, held in memory once.

Ranks that do the same work launch kernels of the same names, in modules of the same paths, and call
the same collectives in the same order. Of thousands of kept analyses these are half of the memory.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, get_args, get_type_hints

import numpy as np

from megatron.torch_trace.analysis.communication.rank_calls import RankCalls
from megatron.torch_trace.analysis.run.rank import RankOutcome
from megatron.torch_trace.columns.intervals import Ints

_ALIKE = ("kind", "step", "bytes", "elements", "seq")
"""Columns of calls that ranks have in common; times are each rank's own."""
_set = object.__setattr__


class SharedValues:
    """What has been met, so that the next rank need not hold it again."""

    def __init__(self) -> None:
        self._texts: dict[Any, Any] = {None: None}
        self._columns: dict[tuple[int, int], Ints] = {}
        self._last: dict[str, Ints] = {}

    def of(self, outcome: RankOutcome) -> RankOutcome:
        """The same outcome; nobody else may have it yet, since its rows are changed in place."""
        self._share_texts((outcome.result,))
        calls = outcome.calls
        columns = {name: self._column(name, getattr(calls, name)) for name in _ALIKE}
        kinds = self._texts.setdefault(calls.kinds, calls.kinds)
        calls = RankCalls(start=calls.start, end=calls.end, kinds=kinds, **columns)
        return dataclasses.replace(outcome, calls=calls)

    def _share_texts(self, rows: Sequence[Any]) -> None:
        """Of dataclasses of one type, and of those in their fields."""
        kind: Any = type(rows[0])
        texts, nested = _fields(kind)
        share = self._texts.setdefault
        for name in texts:
            for row in rows:
                value = getattr(row, name)
                known = share(value, value)
                if known is not value:
                    # Frozen against those who read it, who come later.
                    _set(row, name, known)
        for name in nested:
            for row in rows:
                value = getattr(row, name)
                if value and isinstance(value, tuple) and dataclasses.is_dataclass(value[0]):
                    self._share_texts(value)
                elif dataclasses.is_dataclass(value):
                    self._share_texts((value,))

    def _column(self, name: str, values: Ints) -> Ints:
        # Mostly it is that of the rank before.
        last = self._last.get(name)
        if last is not None and _is_equal(last, values):
            return last
        found = self._last[name] = self._known(values)
        return found

    def _known(self, values: Ints) -> Ints:
        key = len(values), zlib.crc32(np.ascontiguousarray(values))
        known = self._columns.setdefault(key, values)
        return known if _is_equal(known, values) else values


def _is_equal(one: Ints, other: Ints) -> bool:
    return one.dtype == other.dtype and np.array_equal(one, other)


@cache
def _fields(kind: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the fields of a dataclass that are texts, and of those with rows that have texts."""
    hints = get_type_hints(kind)
    texts = tuple(name for name, hint in hints.items() if _words(hint) <= {str, type(None), ...})
    rows = tuple(name for name, hint in hints.items() if any(map(_has_texts, _words(hint))))
    return texts, rows


@cache
def _has_texts(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind) and isinstance(kind, type) and any(_fields(kind))


def _words(hint: Any) -> set[Any]:
    """What a hint is made of: `str` and `...` of `tuple[str, ...]`."""
    parts: Iterable[Any] = get_args(hint)
    return set().union(*map(_words, parts)) if parts else {hint}
