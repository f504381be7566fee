# SPDX-License-Identifier: Apache-2.0
"""Modules as an icicle: below each module its parts, each as wide as the GPU work it launched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from megatron.torch_trace.analysis.results.analysis import RankResult
from megatron.torch_trace.report.figures.icicle import (
    DECIMALS,
    LEAST_NAMED,
    LEAST_WIDTH,
    Icicle,
    IcicleFigure,
)
from megatron.torch_trace.report.module_nodes import ModuleNode, module_nodes
from megatron.torch_trace.report.tables import at
from megatron.torch_trace.wording import duration, flop_rate, percent

_MOST_DEPTH = 12
_TOLD = (
    "Below each module are its parts; what is empty to the right is in no module, below a module "
    "it is its own. The darker, the more FLOP/s."
)
_TOLD_UNKNOWN = f"{_TOLD[:-1]}, which are unknown here."


def module_icicle(rank: RankResult, name: str, steps: int) -> IcicleFigure | None:
    """None where modules launched no GPU work.

    Args:
        rank: whose modules.
        name: what it is called, `rank 0, stage 0`.
        steps: of this rank; times are those of an iteration.
    """
    roots = [node for node in module_nodes(rank.modules) if node.total_ns]
    account = rank.module_account
    whole = max(account.gpu_ns if account else 0, sum(node.total_ns for node in roots))
    if not roots or not whole:
        return None
    speeds = [node.tflops or 0.0 for node in roots]
    fastest = max([*speeds, *(node.tflops or 0.0 for node in _below(roots))], default=0.0)
    drawing = _Drawing(rank.rank, whole, max(1, steps), fastest)
    parts = tuple(drawing.parts(roots, 0, 0.0))
    title = f"{name[0].upper()}{name[1:]}: modules by the GPU work that they launched"
    if not parts:
        return None
    told = _TOLD if any(one.colour for one in parts) else _TOLD_UNKNOWN
    return IcicleFigure(title, 1 + max(one.depth for one in parts), parts, told)


def _below(nodes: list[ModuleNode]) -> Iterator[ModuleNode]:
    for node in nodes:
        yield from node.children
        yield from _below(node.children)


@dataclass(frozen=True, slots=True)
class _Drawing:
    rank: int
    whole: int
    steps: int
    fastest: float

    def parts(self, nodes: list[ModuleNode], depth: int, left: float) -> Iterator[Icicle]:
        """The modules of a level from the left, each with what is below it."""
        for node in nodes:
            width = 100 * node.total_ns / self.whole
            if width < LEAST_WIDTH or depth >= _MOST_DEPTH:
                continue
            yield self._part(node, depth, left, width)
            yield from self.parts([one for one in node.children if one.total_ns], depth + 1, left)
            left += width

    def _part(self, node: ModuleNode, depth: int, left: float, width: float) -> Icicle:
        rate = node.tflops
        speed = f", {flop_rate(rate)} TFLOP/s" if rate else ""
        moments = [row.longest for row in node.rows if row.longest]
        longest = max(moments, key=lambda one: one.duration_ns, default=None)
        return Icicle(
            round(left, DECIMALS),
            round(width, DECIMALS),
            depth,
            node.name if width >= LEAST_NAMED else "",
            f"{'.'.join(node.path)}: {duration(node.total_ns / self.steps)} an iteration, "
            f"{percent(node.total_ns / self.whole)} of the GPU work{speed}",
            self._speed(rate),
            at(self.rank, longest),
        )

    def _speed(self, rate: float | None) -> str:
        """`slow`, `medium` or `fast` beside the fastest module; "" if unknown."""
        if not rate or not self.fastest:
            return ""
        part = rate / self.fastest
        return "fast" if part >= 2 / 3 else "medium" if part >= 1 / 3 else "slow"
