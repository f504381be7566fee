# SPDX-License-Identifier: Apache-2.0
"""The training loop's thread as an icicle: below each path what lies in it, as wide as its time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from megatron.torch_trace.analysis.host.loop_paths import CALL, OPERATOR, PYTHON, SPAN
from megatron.torch_trace.analysis.results.analysis import RankResult
from megatron.torch_trace.report.figures.icicle import (
    DECIMALS,
    LEAST_NAMED,
    LEAST_WIDTH,
    Icicle,
    IcicleFigure,
)
from megatron.torch_trace.report.figures.loop_nodes import LoopNode, loop_tree
from megatron.torch_trace.report.tables import at
from megatron.torch_trace.wording import count, counted, duration, number, percent

OTHERS = "others"
KINDS = {
    PYTHON: "Python",
    SPAN: "span",
    OPERATOR: "operator",
    CALL: "runtime call",
    OTHERS: "shorter ones together",
}


def loop_icicle(rank: RankResult, name: str, steps: int) -> IcicleFigure | None:
    """None where nothing tells what the thread did.

    Args:
        rank: whose thread.
        name: what it is called, `rank 0, stage 0`.
        steps: of this rank; times are those of an iteration.
    """
    thread = loop_tree(rank.host.loop_paths)
    if thread is None or not thread.time_ns:
        return None
    parts = tuple(_Drawing(rank.rank, thread.time_ns, max(1, steps)).below(thread, 0.0))
    if not parts:
        return None
    found = {one.colour.removeprefix("loop-") for one in parts}
    return IcicleFigure(
        f"{name[0].upper()}{name[1:]}: the training loop's thread, by what encloses what",
        1 + max(one.depth for one in parts),
        parts,
        _told(rank, thread, max(1, steps)),
        tuple((f"loop-{kind}", words) for kind, words in KINDS.items() if kind in found),
    )


def _told(rank: RankResult, thread: LoopNode, steps: int) -> str:
    told = [
        f"The whole width is {duration(thread.time_ns / steps)}, an iteration. Below each part is "
        "what lies in it in time; what is empty below a part is its own."
    ]
    if thread.self_ns:
        nothing = duration(thread.self_ns / steps)
        told.append(f"To the right, {nothing}, nothing is recorded on the thread.")
    loop = rank.host.loop_thread
    if loop is not None and loop.backward_ns:
        told.append(
            f"For {duration(loop.backward_ns / steps)} only other threads run operators, which is "
            "the backward pass."
        )
    return " ".join(told)


@dataclass(frozen=True, slots=True)
class _Drawing:
    rank: int
    whole: int
    steps: int

    def below(self, node: LoopNode, left: float) -> Iterator[Icicle]:
        """What lies in a node, from its left edge on: paths, then those that are too short."""
        for child in node.children:
            width = 100 * child.time_ns / self.whole
            if width >= LEAST_WIDTH:
                yield self._part(child, left, width)
                yield from self.below(child, left)
            left += width
        width = 100 * node.others_ns / self.whole
        if width >= LEAST_WIDTH:
            told = f"{counted(node.others, 'shorter path')}: {self._time(node.others_ns)}"
            label = OTHERS if width >= LEAST_NAMED else ""
            yield self._icicle(left, width, node.level, label, told, OTHERS)

    def _part(self, node: LoopNode, left: float, width: float) -> Icicle:
        calls = node.innermost.calls / self.steps
        times = "once" if calls == 1 else f"{_calls(calls)} times"
        own = f", {duration(node.self_ns / self.steps)} of it its own" if node.self_ns else ""
        told = f"{node.names}: {self._time(node.time_ns)}{own}, {times}"
        label = node.name if width >= LEAST_NAMED else ""
        return self._icicle(left, width, node.level - 1, label, told, node.innermost.kind, node)

    def _icicle(
        self,
        left: float,
        width: float,
        depth: int,
        label: str,
        told: str,
        kind: str,
        node: LoopNode | None = None,
    ) -> Icicle:
        return Icicle(
            round(left, DECIMALS),
            round(width, DECIMALS),
            depth,
            label,
            told,
            f"loop-{kind}",
            at(self.rank, node.innermost.longest) if node else None,
        )

    def _time(self, ns: int) -> str:
        return f"{duration(ns / self.steps)} an iteration, {percent(ns / self.whole)} of the thread"


def _calls(calls: float) -> str:
    return count(calls) if calls == int(calls) else number(calls)
