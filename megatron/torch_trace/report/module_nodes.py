# SPDX-License-Identifier: Apache-2.0
"""Modules as a tree for people: those whose paths differ in numbers only are one node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from megatron.torch_trace.analysis.modules.ranges import holders
from megatron.torch_trace.analysis.modules.rows import ModuleRow
from megatron.torch_trace.analysis.results.cpu_time import CpuModuleRow
from megatron.torch_trace.analysis.timeline.span_names import ANY, merged_path
from megatron.torch_trace.wording import ranks

_PER_TERA = 1e-3
"""TFLOP/s of one FLOP a ns."""
_PASSES = ("self_ns", "recompute_self_ns", "backward_self_ns")

Path = tuple[str, ...]
"""Parts of a dotted path, `*` for numbers."""


@dataclass(slots=True)
class ModuleNode:
    """One line of a tree.

    Args:
        path: of the modules.
        rows: the modules: `ModuleRow`, or of a recording without a GPU `CpuModuleRow`.
        above: path of the node above; () for a root.
        children: the heaviest first.
    """

    path: Path
    rows: list[Any] = field(default_factory=list)
    above: Path = ()
    children: list[ModuleNode] = field(default_factory=list)

    def sum(self, name: str) -> int:
        """Sum over the modules of the field with this name."""
        return sum(getattr(row, name) for row in self.rows)

    @property
    def total_ns(self) -> int:
        return self.sum("total_ns")

    @property
    def own_ns(self) -> int:
        """GPU work of all passes in no module below."""
        return sum(map(self.sum, _PASSES))

    @property
    def is_list(self) -> bool:
        """Several modules with a number of their own, layers for one."""
        return self.path[-1] == ANY and len(self.rows) > 1

    @property
    def type(self) -> str:
        """Class of the modules, or how many classes they are of."""
        kinds = {row.type for row in self.rows}
        return kinds.pop() if len(kinds) == 1 else f"{len(kinds)} classes"

    @property
    def name(self) -> str:
        """What this line adds to the one above it, numbers as ranges: `layers.0-3`."""
        # A model is above its parts and not in their paths.
        skip = len(self.above) if self.path[: len(self.above)] == self.above else 0
        parts = []
        for at in range(skip, len(self.path)):
            numbers = {row.module.split(".")[at] for row in self.rows}
            several = self.path[at] == ANY
            parts.append(ranks(tuple(sorted(map(int, numbers)))) if several else self.path[at])
        return ".".join(parts)

    @property
    def tflops(self) -> float | None:
        """As in `ModuleRow`, of all modules."""
        flops = [
            one for row in self.rows for one in (row.flops, row.backward_flops, row.recompute_flops)
        ]
        known = [one for one in flops if one is not None]
        computing = self.total_ns - self.sum("communication_ns")
        if len(known) < len(flops) or not sum(known) or computing <= 0:
            return None
        return float(sum(known) / computing * _PER_TERA)


def module_nodes(rows: Sequence[ModuleRow | CpuModuleRow]) -> list[ModuleNode]:
    """The roots of the tree of these modules, the heaviest first."""
    nodes: dict[Path, ModuleNode] = {}
    for row in rows:
        path = merged_path(row.module)
        nodes.setdefault(path, ModuleNode(path)).rows.append(row)
    roots: list[ModuleNode] = []
    for path, node in nodes.items():
        nearest = [merged_path(one) for one in reversed(holders(node.rows[0].module))]
        node.above = next((one for one in nearest if one in nodes and one != path), ())
        (nodes[node.above].children if node.above else roots).append(node)
    for node in nodes.values():
        node.children.sort(key=lambda one: -one.total_ns)
    return sorted(roots, key=lambda one: -one.total_ns)


def walk(nodes: list[ModuleNode], level: int = 0) -> Iterator[tuple[int, ModuleNode]]:
    """All nodes from the roots down, with their level from 0 on."""
    for node in nodes:
        yield level, node
        yield from walk(node.children, level + 1)
