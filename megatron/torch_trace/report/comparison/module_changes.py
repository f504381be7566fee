# SPDX-License-Identifier: Apache-2.0
"""What B does otherwise, module by module: the icicle of both."""

from __future__ import annotations

from collections.abc import Sequence

from megatron.torch_trace.analysis.compare.module_tree import ModuleDifference
from megatron.torch_trace.analysis.modules.ranges import holders
from megatron.torch_trace.report.comparison.change_icicle import (
    ChangeFigure,
    ChangeNode,
    Unsure,
    change_figure,
    widest_first,
)

_UNSURE = Unsure("not recorded in A or not in B", "{} did not record it")


def module_changes(rows: Sequence[ModuleDifference]) -> ChangeFigure | None:
    """None where there is no module with GPU work."""
    return change_figure(_tree(rows), rows, _UNSURE)


def _tree(rows: Sequence[ModuleDifference]) -> list[ChangeNode]:
    nodes = {row.path: ChangeNode(row, row.path, row.path) for row in rows}
    roots: list[ChangeNode] = []
    for path, node in nodes.items():
        above = next((one for one in reversed(holders(path)) if one in nodes and one != path), "")
        # What its path adds to the one above it, which a model's parts do not repeat.
        node.name = path.removeprefix(f"{above}.")
        (nodes[above].children if above else roots).append(node)
    return widest_first(roots)
