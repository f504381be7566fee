# SPDX-License-Identifier: Apache-2.0
"""Modules of two analyses as one tree, in which modules that differ in numbers only are one.

Of layers that are alike the sum is compared: a change that each of them is too small to be sure
of can be sure of all of them together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from megatron.torch_trace.analysis.compare.statistics import Difference
from megatron.torch_trace.analysis.compare.tables import Amounts, work_differences
from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult
from megatron.torch_trace.analysis.timeline.span_names import merged_path

BOTH, NEW, GONE = "both", "new", "gone"


@dataclass(frozen=True, slots=True)
class ModuleDifference:
    """All modules with one path but for its numbers: `decoder.layers.*.mlp`.

    Args:
        path: that path.
        presence: `BOTH`, `NEW` (only B has it), `GONE` (only A has it); None if one side has it and
            the other one did not record the ranks that could have it.
        calls, time: for an iteration and a rank, modules below included.
    """

    path: str
    presence: str | None
    calls: Difference
    time: Difference


def module_tree(a: Analysis, b: Analysis) -> tuple[ModuleDifference, ...]:
    """Nothing where `unknown_modules` has a reason, or where no module launched GPU work."""
    if unknown_modules(a, b):
        return ()
    rows = work_differences(a, b, _rows)
    alike = _records_the_same(a, b)
    return tuple(
        ModuleDifference(row.name, _presence(row.time, alike=alike), row.calls, row.time)
        for row in rows
    )


def unknown_modules(a: Analysis, b: Analysis) -> str | None:
    """Why modules cannot be compared, a sentence; None if they can, or if neither side has any."""
    sources = [_source(side) for side in (a, b)]
    if sources == [None, None]:
        return None
    for letter, side, source in zip("AB", (a, b), sources, strict=True):
        if source is None:
            return (
                f"The modules of {letter} are unknown: its traces have neither spans of modules "
                "(--torch-profile-spans modules) nor stacks."
            )
        if any(rank.unknown for rank in side.ranks):
            return f"The GPU work of the modules of {letter} is unknown, as its utilisation is."
    if sources[0] != sources[1]:
        return (
            f"Modules cannot be compared: those of A are named by {sources[0]}, those of B by "
            f"{sources[1]}."
        )
    return None


def merged(path: str) -> str:
    """The path with `*` for its numbers."""
    return ".".join(merged_path(path))


def _rows(rank: RankResult) -> Iterator[tuple[tuple[str, str], Amounts]]:
    for row in rank.modules:
        yield (merged(row.module), ""), (row.calls, row.total_ns)


def _source(side: Analysis) -> str | None:
    found = {rank.module_account.source for rank in side.ranks if rank.module_account}
    return " and ".join(sorted(found)) or None


def _records_the_same(a: Analysis, b: Analysis) -> bool:
    """Whether what one side lacks is not there: the same ranks, or the same stages, or all."""
    sides = (a, b)
    ranks = [{rank.rank for rank in side.ranks} for side in sides]
    stages = [{rank.coordinates.get("pp") for rank in side.ranks} for side in sides]
    whole = [{len(side.ranks)} == {rank.world_size for rank in side.ranks} for side in sides]
    return ranks[0] == ranks[1] or all(whole) or (stages[0] == stages[1] and None not in stages[0])


def _presence(time: Difference, *, alike: bool) -> str | None:
    if time.before is not None and time.after is not None:
        return BOTH
    if not alike:
        return None
    return NEW if time.before is None else GONE
