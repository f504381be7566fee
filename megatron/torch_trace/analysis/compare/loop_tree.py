# SPDX-License-Identifier: Apache-2.0
"""The training loop's thread of two analyses as one tree of paths.

Paths too short for a row of their own are unknown and not zero: whether the path is missing on a
rank, or only short, is known where nothing was put together in what it would lie in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from megatron.torch_trace.analysis.compare.module_tree import BOTH, GONE, NEW
from megatron.torch_trace.analysis.compare.statistics import Difference, by_rank, correct
from megatron.torch_trace.analysis.compare.tables import steps_of
from megatron.torch_trace.analysis.host.loop_paths import MOST_ROWS, PYTHON, LoopPath
from megatron.torch_trace.analysis.modules.ranges import SPANS
from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult

Names = tuple[str, ...]
"""Of a path, the outermost first; () is the thread."""

_PLACE = re.compile(r"(?:.*/)?([^/]*)\(\d+\): ")


@dataclass(frozen=True, slots=True)
class LoopDifference:
    """One path of the thread.

    Args:
        path: its names, the outermost first; functions without folders and lines, which change from
            one version of the code to the next. () is the thread, whose own time is that in which
            nothing is recorded on it.
        kind: as in `LoopPath`.
        presence: `BOTH`, `NEW` (only B has it), `GONE` (only A has it); None if on one side it is
            missing or too short to be told apart.
        calls, time, own: for an iteration and a rank; time with all that lies in it, own in nothing
            that is recorded in it.
    """

    path: Names
    kind: str
    presence: str | None
    calls: Difference
    time: Difference
    own: Difference


def loop_tree(a: Analysis, b: Analysis) -> tuple[LoopDifference, ...]:
    """Paths by time, each behind what it lies in; nothing where `unknown_loop` has a reason."""
    if unknown_loop(a, b):
        return ()
    sides = [[_Thread(rank) for rank in side.ranks if rank.host.loop_paths] for side in (a, b)]
    kinds: dict[Names, str] = {}
    longest: dict[Names, float] = {}
    for side in sides:
        means: dict[Names, float] = {}
        for thread in side:
            for path, row in thread.rows.items():
                kinds.setdefault(path, row.kind)
                means[path] = means.get(path, 0.0) + row.time / len(side)
        longest |= {path: max(time, longest.get(path, 0.0)) for path, time in means.items()}
    paths = sorted(longest, key=lambda path: (-longest[path], len(path), path))[:MOST_ROWS]
    calls = [_difference(sides, path, "calls") for path in paths]
    times = correct([_difference(sides, path, "time") for path in paths])
    owns = correct([_difference(sides, path, "own") for path in paths])
    return tuple(
        LoopDifference(path, kinds[path], _presence(sides, path, time), call, time, own)
        for path, call, time, own in zip(paths, calls, times, owns, strict=True)
    )


def unknown_loop(a: Analysis, b: Analysis) -> str | None:
    """Why the thread cannot be compared, a sentence; None if it can, or if neither side has it."""
    sides = (a, b)
    known = [any(rank.host.loop_paths for rank in side.ranks) for side in sides]
    if not any(known):
        return None
    if not all(known):
        letter = "AB"[known.index(False)]
        return f"What the training loop's thread did is unknown in {letter}."
    for what, held in (
        ("Python functions", [_has_python(side) for side in sides]),
        ("spans of phases", [any(rank.phases for rank in side.ranks) for side in sides]),
        ("spans of modules", [_has_spans(side) for side in sides]),
    ):
        if held[0] != held[1]:
            has, lacks = ("A", "B") if held[0] else ("B", "A")
            return (
                f"The training loop's thread cannot be compared: {has} has {what}, "
                f"and {lacks} has none."
            )
    return None


def _has_python(side: Analysis) -> bool:
    return any(path.kind == PYTHON for rank in side.ranks for path in rank.host.loop_paths)


def _has_spans(side: Analysis) -> bool:
    accounts = [rank.module_account for rank in side.ranks]
    return any(one is not None and one.source == SPANS for one in accounts)


@dataclass(slots=True)
class _Amounts:
    """Of all rows with one path, for an iteration; whether something short lies in them."""

    kind: str
    calls: float = 0.0
    time: float = 0.0
    own: float = 0.0
    has_others: bool = False


class _Thread:
    """The rows of one rank by their names."""

    def __init__(self, rank: RankResult) -> None:
        self.rank = rank.rank
        self.rows: dict[Names, _Amounts] = {}
        names: list[Names] = []
        for row in rank.host.loop_paths:
            path = () if row.above is None else (*names[row.above], _name(row))
            names.append(path)
            amounts = self.rows.setdefault(path, _Amounts(row.kind))
            amounts.calls += row.calls / steps_of(rank)
            amounts.time += row.time_ns / steps_of(rank)
            amounts.own += row.self_ns / steps_of(rank)
            amounts.has_others |= bool(row.others)

    def lacks(self, path: Names) -> bool:
        """Whether it has no such path, not even a short one."""
        around = path
        while around not in self.rows:
            around = around[:-1]
        return not self.rows[around].has_others and around != path


def _name(row: LoopPath) -> str:
    return _PLACE.sub(r"\1: ", row.name) if row.kind == PYTHON else row.name


def _difference(sides: list[list[_Thread]], path: Names, what: str) -> Difference:
    before, after = (_values(side, path, what) for side in sides)
    return by_rank(before, after)


def _values(side: list[_Thread], path: Names, what: str) -> Mapping[int, float]:
    """rank -> amount; 0 of a rank that lacks what another one has, nothing of one that may not."""
    if not any(path in thread.rows for thread in side):
        return {}
    return {
        thread.rank: getattr(thread.rows[path], what) if path in thread.rows else 0.0
        for thread in side
        if path in thread.rows or thread.lacks(path)
    }


def _presence(sides: list[list[_Thread]], path: Names, time: Difference) -> str | None:
    if time.before is not None and time.after is not None:
        return BOTH
    other = sides[0] if time.before is None else sides[1]
    if not all(thread.lacks(path) for thread in other):
        return None
    return NEW if time.before is None else GONE
