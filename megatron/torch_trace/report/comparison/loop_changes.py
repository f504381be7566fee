# SPDX-License-Identifier: Apache-2.0
"""What the training loop's thread does otherwise in B, path by path: the icicle of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from megatron.torch_trace.analysis.compare.loop_tree import LoopDifference
from megatron.torch_trace.analysis.compare.module_tree import BOTH
from megatron.torch_trace.analysis.compare.statistics import Difference
from megatron.torch_trace.report.comparison.change_icicle import (
    ChangeFigure,
    ChangeNode,
    Unsure,
    change_figure,
    widest_first,
)
from megatron.torch_trace.report.figures.loop_nodes import BETWEEN, PASSED_ON, short

_UNSURE = Unsure(
    "missing, or too short to be told apart, in A or in B",
    "in {} it is missing or too short to be told apart",
)


NOTHING = "(nothing recorded)"


@dataclass(frozen=True, slots=True)
class _Nothing:
    """The thread's own time as a part beside its paths."""

    time: Difference
    presence: str = BOTH


def loop_changes(rows: Sequence[LoopDifference]) -> ChangeFigure | None:
    """None where nothing is known of the thread."""
    nodes: dict[tuple[str, ...], ChangeNode] = {}
    roots: list[ChangeNode] = []
    for row in sorted(rows, key=lambda one: len(one.path)):
        if not row.path:
            if row.own.before or row.own.after:
                roots.append(ChangeNode(_Nothing(row.own), NOTHING, NOTHING))
            continue
        name = short(row.path[-1], row.kind)
        nodes[row.path] = node = ChangeNode(row, name, name)
        above = nodes.get(row.path[:-1])
        (above.children if above else roots).append(node)
    for root in roots:
        _fold(root)
    return change_figure(widest_first(roots), rows, _UNSURE)


def _fold(node: ChangeNode) -> None:
    """Make one with a part what only passes on to one that changes in the same way."""
    names = [node.name]
    while len(node.children) == 1:
        (inside,) = node.children
        if inside.width < PASSED_ON * node.width or inside.kind != node.kind:
            break
        names.append(inside.name)
        node.children = inside.children
    node.path = BETWEEN.join(names)
    if len(names) > 1:
        node.name = BETWEEN.join((names[0], names[-1]))
    for child in node.children:
        _fold(child)
