# SPDX-License-Identifier: Apache-2.0
"""The icicle of both sides, coloured where a change is sure.

A part is as wide as the larger of its two times, and at least as wide as its parts together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from megatron.torch_trace.analysis.compare.module_tree import BOTH, GONE, NEW
from megatron.torch_trace.analysis.compare.statistics import Difference
from megatron.torch_trace.report.comparison.words import pair, relative, signed
from megatron.torch_trace.report.figures.icicle import DECIMALS, LEAST_NAMED, LEAST_WIDTH
from megatron.torch_trace.wording import duration

LONGER, LESS, ELSEWHERE = "longer", "shorter", "elsewhere"
_MOST_DEPTH = 24
_LEGEND = {
    LONGER: "longer in B, sure",
    LESS: "less in B, sure",
    NEW: "only in B",
    GONE: "only in A",
    ELSEWHERE: "",
    "": "the change may be noise",
}


@dataclass(frozen=True, slots=True)
class Change:
    """One part; left and width are % of the figure.

    Args:
        depth: 0 of the outermost parts.
        kind: `longer` or `shorter` if that is sure, `new`, `gone`, `elsewhere` if one side cannot
            tell; "" if the change may be noise.
    """

    left: float
    width: float
    depth: int
    label: str
    told: str
    kind: str


@dataclass(frozen=True, slots=True)
class ChangeFigure:
    """Both sides; `untested` if the recordings cannot show what is sure."""

    rows: int
    parts: tuple[Change, ...]
    legend: tuple[tuple[str, str], ...]
    untested: bool


class Compared(Protocol):
    """A row of a comparison that one part stands for."""

    @property
    def presence(self) -> str | None: ...

    @property
    def time(self) -> Difference: ...


@dataclass(slots=True)
class ChangeNode:
    """One part and what lies in it.

    Args:
        row: its times.
        name: what is written on it.
        path: what it is called where there is room.
    """

    row: Compared
    name: str
    path: str
    children: list[ChangeNode] = field(default_factory=list)

    @property
    def width(self) -> float:
        time = self.row.time
        below = sum(child.width for child in self.children)
        return max(time.before or 0.0, time.after or 0.0, below)

    @property
    def kind(self) -> str:
        if self.row.presence != BOTH:
            return self.row.presence or ELSEWHERE
        change = self.row.time.change
        if not self.row.time.significant or not change:
            return ""
        return LONGER if change > 0 else LESS


@dataclass(frozen=True, slots=True)
class Unsure:
    """Words for what one side cannot tell: in the legend, and of a part where `{}` is that side."""

    legend: str
    told: str


def widest_first(nodes: list[ChangeNode]) -> list[ChangeNode]:
    """The nodes in their order from the left, and so all below them."""
    for node in nodes:
        node.children = widest_first(node.children)
    return sorted(nodes, key=lambda one: (-one.width, one.path))


def change_figure(
    roots: Sequence[ChangeNode], rows: Sequence[Compared], unsure: Unsure
) -> ChangeFigure | None:
    """None where nothing took time.

    Args:
        roots: the outermost parts, from the left.
        rows: all that was compared.
        unsure: words for what one side cannot tell.
    """
    whole = sum(root.width for root in roots)
    parts = tuple(_parts(roots, 0, 0.0, whole, unsure)) if whole else ()
    if not parts:
        return None
    kinds = {one.kind for one in parts}
    both = [row for row in rows if row.presence == BOTH]
    untested = bool(both) and all(row.time.p is None for row in both)
    return ChangeFigure(
        1 + max(one.depth for one in parts),
        parts,
        tuple(
            (f"change-{kind or 'noise'}", words or unsure.legend)
            for kind, words in _LEGEND.items()
            if kind in kinds
        ),
        untested,
    )


def _parts(
    nodes: Sequence[ChangeNode], depth: int, left: float, whole: float, unsure: Unsure
) -> Iterator[Change]:
    for node in nodes:
        width = 100 * node.width / whole
        if width < LEAST_WIDTH or depth >= _MOST_DEPTH:
            continue
        yield Change(
            round(left, DECIMALS),
            round(width, DECIMALS),
            depth,
            _label(node) if width >= LEAST_NAMED else "",
            _told(node, unsure),
            node.kind,
        )
        yield from _parts(node.children, depth + 1, left, whole, unsure)
        left += width


def _label(node: ChangeNode) -> str:
    if node.kind in (LONGER, LESS):
        return f"{node.name} {signed(node.row.time.change)} ms"
    return f"{node.name} ({node.kind})" if node.kind in (NEW, GONE) else node.name


def _told(node: ChangeNode, unsure: Unsure) -> str:
    time, path = node.row.time, node.path
    if time.before is None or time.after is None:
        side, other, ns = ("B", "A", time.after) if time.before is None else ("A", "B", time.before)
        only = f"only {side} has it" if node.row.presence else unsure.told.format(other)
        return f"{path}: {duration(ns)} an iteration in {side}; {only}"
    noise = {True: "sure", False: "may be noise", None: "not tested"}[time.significant]
    times = pair(duration(time.before), duration(time.after))
    return f"{path}: {times} an iteration, {signed(time.change)} ms, {relative(time)}, {noise}"
