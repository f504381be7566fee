# SPDX-License-Identifier: Apache-2.0
"""Rows of two analyses matched by what they are about, and made comparable: an iteration, a rank.

An analysis holds these rows by rank and not by step, so they are tested over ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeVar

from megatron.torch_trace.analysis.compare.kernels import matched_names
from megatron.torch_trace.analysis.compare.statistics import Difference, by_rank, correct
from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult

Key = TypeVar("Key", bound=Hashable)
Amounts = tuple[float, float]
"""(calls, ns) of one row of one rank in its window."""


@dataclass(frozen=True, slots=True)
class WorkDifference:
    """One kernel, family, operator with its shape, module or phase.

    Args:
        name: as in the table of `analyze`.
        detail: family of a kernel, shape of an operator, class of a module; "" otherwise.
        calls, time: for an iteration and a rank; None on the side where there is none of it.
        names: of a kernel all names that were taken for it; () if there is one.
    """

    name: str
    detail: str
    calls: Difference
    time: Difference
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CommunicationDifference:
    """One collective of one process group; `busbw` is in decimal GB/s, `bytes` of an iteration."""

    dimension: str
    group: str
    collective: str
    calls: Difference
    time: Difference
    exposed: Difference
    wait: Difference
    bytes: Difference
    busbw: Difference


def steps_of(rank: RankResult) -> int:
    """Iterations that a rank's window holds; 1 where none are marked."""
    return max(1, len(rank.steps))


def steps_in(analysis: Analysis) -> float:
    """Iterations that the windows of the ranks hold, mean over them."""
    return fmean(map(steps_of, analysis.ranks))


def work_rows(a: Analysis, b: Analysis, table: str) -> tuple[WorkDifference, ...]:
    """Rows of `kernels` by name, of `families` by family, of `shapes` by operator and shape."""
    names: Mapping[str, str] = {}
    details: dict[str, str] = {}
    if table == "kernels":
        sides = [[row.name for rank in side.ranks for row in rank.kernels] for side in (a, b)]
        names = matched_names(*sides)

    def rows_of(rank: RankResult) -> Iterable[tuple[tuple[str, str], Amounts]]:
        if table == "kernels":
            for kernel in rank.kernels:
                name = names[kernel.name]
                family = details.setdefault(name, kernel.family)
                yield (name, family), (kernel.calls, kernel.time_ns)
        elif table == "families":
            for family_row in rank.families:
                yield (family_row.family, ""), (family_row.calls, family_row.time_ns)
        else:
            for shape in rank.shapes:
                yield (shape.operator, shape.shape or ""), (shape.kernels, shape.time_ns)

    found = work_differences(a, b, rows_of)
    if table != "kernels":
        return found
    merged: dict[str, list[str]] = {}
    for name, row in names.items():
        merged.setdefault(row, []).append(name)
    return tuple(
        WorkDifference(row.name, row.detail, row.calls, row.time, tuple(merged[row.name]))
        if len(merged[row.name]) > 1
        else row
        for row in found
    )


def module_rows(a: Analysis, b: Analysis, table: str) -> tuple[WorkDifference, ...]:
    """Modules by path, or classes of modules; time is forward, backward and recomputation."""
    by_class = table == "module_classes"
    return work_differences(
        a,
        b,
        lambda rank: (
            (
                (row.type, "") if by_class else (row.module, row.type),
                (row.calls, row.total_ns),
            )
            for row in (rank.module_classes if by_class else rank.modules)
        ),
    )


def phase_rows(a: Analysis, b: Analysis) -> tuple[WorkDifference, ...]:
    """Phases of the training loop; time is the CPU's in them."""
    return work_differences(
        a,
        b,
        lambda rank: (((row.phase, ""), (row.calls, row.time_ns)) for row in rank.phases),
        of_gpu=False,
    )


def work_differences(
    a: Analysis,
    b: Analysis,
    rows_of: Callable[[RankResult], Iterable[tuple[tuple[str, str], Amounts]]],
    *,
    of_gpu: bool = True,
) -> tuple[WorkDifference, ...]:
    """Rows by the size of the change; `rows_of` a rank are ((name, detail), amounts).

    Amounts of the GPU are those of the ranks of which is known what their GPUs did; of all ranks
    where that is known of none.
    """
    sides = [
        _amounts((of_gpu and [one for one in side.ranks if one.breakdown]) or side.ranks, rows_of)
        for side in (a, b)
    ]
    keys = list(dict.fromkeys([*sides[0], *sides[1]]))
    calls = [_difference(sides, key, 0) for key in keys]
    times = correct([_difference(sides, key, 1) for key in keys])
    rows = [
        WorkDifference(*key, calls=call, time=time)
        for key, call, time in zip(keys, calls, times, strict=True)
    ]
    return tuple(sorted(rows, key=lambda row: (-_size(row.time), row.name, row.detail)))


def _amounts(
    ranks: Sequence[RankResult], rows_of: Callable[[RankResult], Iterable[tuple[Key, Amounts]]]
) -> dict[Key, dict[int, Amounts]]:
    """key -> rank -> amounts of an iteration; a rank that lacks a key of another has zeros."""
    found: dict[Key, dict[int, Amounts]] = {}
    nothing = {rank.rank: (0.0, 0.0) for rank in ranks}
    for rank in ranks:
        steps = steps_of(rank)
        for key, (calls, time) in rows_of(rank):
            if key not in found:
                found[key] = nothing.copy()
            by = found[key]
            by[rank.rank] = (by[rank.rank][0] + calls / steps, by[rank.rank][1] + time / steps)
    return found


def _difference(sides: list[dict[Key, dict[int, Amounts]]], key: Key, which: int) -> Difference:
    before, after = (
        {rank: amounts[which] for rank, amounts in side.get(key, {}).items()} for side in sides
    )
    return by_rank(before, after)


def _size(time: Difference) -> float:
    return abs((time.after or 0.0) - (time.before or 0.0))


def communication_rows(a: Analysis, b: Analysis) -> tuple[CommunicationDifference, ...]:
    """Collectives by dimension, group and kind; means over the ranks that have them."""
    sides = [
        {(row.dimension, row.group, row.collective): row for row in side.summary.communication}
        for side in (a, b)
    ]
    keys = list(dict.fromkeys([*sides[0], *sides[1]]))

    def both(key: tuple[str, str, str], column: str, *, by_step: bool = True) -> Difference:
        values = []
        for side, analysis in zip(sides, (a, b), strict=True):
            value = getattr(side[key], column) if key in side else None
            steps = steps_in(analysis) if by_step else 1
            values.append(None if value is None else value / steps)
        return Difference(values[0], values[1])

    times = correct([_collective_time(a, b, key) for key in keys])
    rows = [
        CommunicationDifference(
            *key,
            calls=both(key, "calls"),
            time=time,
            exposed=both(key, "exposed_ns"),
            wait=both(key, "wait_ns"),
            bytes=both(key, "bytes"),
            busbw=both(key, "busbw_gbps", by_step=False),
        )
        for key, time in zip(keys, times, strict=True)
    ]
    return tuple(sorted(rows, key=lambda row: -_size(row.time)))


def _collective_time(a: Analysis, b: Analysis, key: tuple[str, str, str]) -> Difference:
    sides = [
        {
            rank.rank: row.time_ns / steps_of(rank)
            for rank in side.ranks
            for row in rank.communication
            if (row.dimension, row.group, row.collective) == key
        }
        for side in (a, b)
    ]
    return by_rank(sides[0], sides[1])
