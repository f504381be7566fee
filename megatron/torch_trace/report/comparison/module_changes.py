# SPDX-License-Identifier: Apache-2.0
"""What B does otherwise, module by module: the icicle of both, coloured where a change is sure.

A module is as wide as the larger of its two times, and at least as wide as its parts together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from megatron.torch_trace.analysis.compare.module_tree import BOTH, GONE, NEW, ModuleDifference
from megatron.torch_trace.analysis.modules.ranges import holders
from megatron.torch_trace.report.comparison.words import pair, relative, signed
from megatron.torch_trace.wording import duration

_DECIMALS = 2
_LEAST_WIDTH, _LEAST_NAMED = 0.3, 3.0
"""In %: what is narrower cannot be seen, or cannot be read."""
_MOST_DEPTH = 12
_LONGER, _LESS, _ELSEWHERE = "longer", "shorter", "elsewhere"


@dataclass(frozen=True, slots=True)
class ModuleChange:
    """One module; left and width are % of the figure.

    Args:
        depth: 0 of the outermost modules.
        kind: `longer` or `shorter` if that is sure, `new`, `gone`, `elsewhere` if the other side
            did not record it; "" if the change may be noise.
    """

    left: float
    width: float
    depth: int
    label: str
    told: str
    kind: str


@dataclass(frozen=True, slots=True)
class ModuleChangesFigure:
    """The modules of both sides; `untested` if the recordings cannot show what is sure."""

    rows: int
    parts: tuple[ModuleChange, ...]
    legend: tuple[tuple[str, str], ...]
    untested: bool


_LEGEND = {
    _LONGER: "longer in B, sure",
    _LESS: "less in B, sure",
    NEW: "only in B",
    GONE: "only in A",
    _ELSEWHERE: "not recorded in A or not in B",
    "": "the change may be noise",
}


def module_changes(rows: Sequence[ModuleDifference]) -> ModuleChangesFigure | None:
    """None where there is no module with GPU work."""
    roots = _tree(rows)
    whole = sum(root.width for root in roots)
    parts = tuple(_parts(roots, 0, 0.0, whole)) if whole else ()
    if not parts:
        return None
    kinds = {one.kind for one in parts}
    both = [row for row in rows if row.presence == BOTH]
    untested = bool(both) and all(row.time.p is None for row in both)
    return ModuleChangesFigure(
        1 + max(one.depth for one in parts),
        parts,
        tuple(
            (f"change-{kind or 'noise'}", words) for kind, words in _LEGEND.items() if kind in kinds
        ),
        untested,
    )


@dataclass(slots=True)
class _Node:
    row: ModuleDifference
    above: str = ""
    children: list[_Node] = field(default_factory=list)

    @property
    def width(self) -> float:
        time = self.row.time
        below = sum(child.width for child in self.children)
        return max(time.before or 0.0, time.after or 0.0, below)

    @property
    def kind(self) -> str:
        if self.row.presence != BOTH:
            return self.row.presence or _ELSEWHERE
        change = self.row.time.change
        if not self.row.time.significant or not change:
            return ""
        return _LONGER if change > 0 else _LESS

    @property
    def name(self) -> str:
        """What its path adds to the one above it, which a model's parts do not repeat."""
        return self.row.path.removeprefix(f"{self.above}.")


def _tree(rows: Sequence[ModuleDifference]) -> list[_Node]:
    nodes = {row.path: _Node(row) for row in rows}
    roots: list[_Node] = []
    for path, node in nodes.items():
        node.above = next(
            (one for one in reversed(holders(path)) if one in nodes and one != path), ""
        )
        (nodes[node.above].children if node.above else roots).append(node)
    for node in nodes.values():
        node.children.sort(key=lambda one: (-one.width, one.row.path))
    return sorted(roots, key=lambda one: (-one.width, one.row.path))


def _parts(nodes: list[_Node], depth: int, left: float, whole: float) -> Iterator[ModuleChange]:
    for node in nodes:
        width = 100 * node.width / whole
        if width < _LEAST_WIDTH or depth >= _MOST_DEPTH:
            continue
        label = _label(node) if width >= _LEAST_NAMED else ""
        yield ModuleChange(
            round(left, _DECIMALS), round(width, _DECIMALS), depth, label, _told(node), node.kind
        )
        yield from _parts(node.children, depth + 1, left, whole)
        left += width


def _label(node: _Node) -> str:
    if node.kind in (_LONGER, _LESS):
        return f"{node.name} {signed(node.row.time.change)} ms"
    return f"{node.name} ({node.kind})" if node.kind in (NEW, GONE) else node.name


def _told(node: _Node) -> str:
    time, path = node.row.time, node.row.path
    if time.before is None or time.after is None:
        side, other, ns = ("B", "A", time.after) if time.before is None else ("A", "B", time.before)
        only = f"only {side} has it" if node.row.presence else f"{other} did not record it"
        return f"{path}: {duration(ns)} an iteration in {side}; {only}"
    noise = {True: "sure", False: "may be noise", None: "not tested"}[time.significant]
    times = pair(duration(time.before), duration(time.after))
    return f"{path}: {times} an iteration, {signed(time.change)} ms, {relative(time)}, {noise}"
