# SPDX-License-Identifier: Apache-2.0
"""Many ranks in few lines: by step, and by their coordinate in each parallel dimension."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from megatron.torch_trace.analysis.results.analysis import RankResult
from megatron.torch_trace.analysis.timeline.breakdown import Breakdown
from megatron.torch_trace.format.breakdown_parts import BREAKDOWN_PARTS


@dataclass(frozen=True, slots=True)
class GroupShares:
    """Ranks, or steps of ranks, together.

    Args:
        label: `step 5`, `pp1`.
        count: how many there are.
        mean_ns, shortest_ns, longest_ns: their lengths.
        shortest_rank, longest_rank: whose these are, of several the lowest.
        shares: the parts of the breakdown in the order of its fields, means of shares of the
            length; None if utilisation is unknown on all of them.
    """

    label: str
    count: int
    mean_ns: float
    shortest_ns: int
    longest_ns: int
    shortest_rank: int
    longest_rank: int
    shares: tuple[float, ...] | None


_Entry = tuple[int, int, Breakdown | None]


def by_step(ranks: Sequence[RankResult]) -> tuple[GroupShares, ...]:
    """Every step over the ranks that have it, by number: times in ns, shares of 1."""
    found: dict[int, list[_Entry]] = {}
    for rank in ranks:
        for step in rank.steps:
            entry = (step.end_ns - step.start_ns, rank.rank, step.breakdown)
            found.setdefault(step.step, []).append(entry)
    return tuple(_group(f"step {number}", found[number]) for number in sorted(found))


def by_coordinate(ranks: Sequence[RankResult]) -> tuple[GroupShares, ...]:
    """The ranks at each coordinate of each dimension with more than one: `tp0`, `tp1`, ...

    Means of the windows: times in ns, shares of 1.
    """
    found: dict[str, dict[int, list[_Entry]]] = {}
    for rank in ranks:
        for dimension, coordinate in rank.coordinates.items():
            entry = (rank.window_ns, rank.rank, rank.breakdown)
            found.setdefault(dimension, {}).setdefault(coordinate, []).append(entry)
    return tuple(
        _group(f"{dimension}{coordinate}", entries)
        for dimension, groups in found.items()
        if len(groups) > 1
        for coordinate, entries in sorted(groups.items())
    )


def _group(label: str, entries: Sequence[_Entry]) -> GroupShares:
    lengths = [length for length, _, _ in entries]
    shortest = min(entries, key=lambda entry: (entry[0], entry[1]))
    longest = min(entries, key=lambda entry: (-entry[0], entry[1]))
    known = [(parts, length) for length, _, parts in entries if parts is not None and length]
    shares = tuple(_mean(getattr(parts, name) / length for parts, length in known)
                   for name in BREAKDOWN_PARTS)  # fmt: skip
    return GroupShares(
        label=label,
        count=len(entries),
        mean_ns=_mean(lengths),
        shortest_ns=shortest[0],
        longest_ns=longest[0],
        shortest_rank=shortest[1],
        longest_rank=longest[1],
        shares=shares if known else None,
    )


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


_ALIKE = 0.005
"""Of the window: parts of coordinates that differ by less are the same."""


def by_difference(groups: Sequence[GroupShares]) -> tuple[list[GroupShares], list[str]]:
    """Coordinates by how much the shares of their dimension differ.

    Args:
        groups: as `by_coordinate` gives them.

    Returns:
        The groups of dimensions that differ most first, and the names of dimensions at whose
        coordinates everything is the same.
    """
    dimensions: dict[str, list[GroupShares]] = {}
    for group in groups:
        dimensions.setdefault(group.label.rstrip("0123456789"), []).append(group)
    spreads = {name: _spread(of) for name, of in dimensions.items()}
    ordered = sorted(dimensions, key=lambda name: -spreads[name])
    alike = [name for name in ordered if spreads[name] < _ALIKE]
    return [one for name in ordered if name not in alike for one in dimensions[name]], alike


def _spread(groups: Sequence[GroupShares]) -> float:
    """The most by which a part's share differs; what nobody knows may differ."""
    known = [group.shares for group in groups if group.shares]
    if len(known) < len(groups):
        return 1.0
    parts: list[tuple[float, ...]] = list(zip(*known, strict=True))
    return max(max(part) - min(part) for part in parts)
