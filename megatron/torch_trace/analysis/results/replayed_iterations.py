# SPDX-License-Identifier: Apache-2.0
"""What to know of a window in which CUDA graphs replay whole iterations."""

from __future__ import annotations

from megatron.torch_trace.analysis.communication.dimensions import IN_GRAPH
from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult
from megatron.torch_trace.format.categories import launches_graph
from megatron.torch_trace.wording import counted

_MOST = 0.5
"""Of the kernels: per-layer graphs with a loop around them leave micro-batches."""


def left_unknown_by_graphs(analysis: Analysis) -> list[str]:
    """What a window does not tell because CUDA graphs launched it, a sentence for each."""
    return [*filter(None, [why_no_modules(analysis), _why_not_matched(analysis)])]


def why_no_modules(analysis: Analysis) -> str | None:
    """Why there are neither modules nor micro-batches though spans are on; None where there are, or
    for another reason."""
    first = analysis.ranks[0]  # all ranks run one program
    if not _replays(first):
        return None
    kernels = sum(_of_graphs(first))
    return (
        f"Modules and micro-batches are unknown: CUDA graphs launched {counted(kernels, 'kernel')} "
        f"of {first.name}, and no iteration of the window launched them one by one. A window "
        "that begins before the graphs are captured would tell the modules "
        "(--torch-profile-iterations 1-6)."
    )


def _why_not_matched(analysis: Analysis) -> str | None:
    """Why nobody is said to come last in collectives of graphs; None where there are none, or where
    they are matched, or where there is one rank alone."""
    if len(analysis.ranks) < 2:
        return None
    for rank in analysis.ranks:
        rows = [row for row in rank.communication if row.group == IN_GRAPH]
        calls = sum(row.calls for row in rows if row.wait_ns is None)
        if calls:
            return (
                f"CUDA graphs launched {counted(calls, 'communication kernel')} of {rank.name} "
                "whose process groups no trace tells. They are not matched over ranks: which rank "
                "comes last in them, and how much of them is waiting, is unknown. A window that "
                "begins before the graphs are captured would tell it of the iterations before "
                "(--torch-profile-iterations 1-6)."
            )
    return None


def _replays(rank: RankResult) -> bool:
    if not rank.phases or rank.microbatches or rank.module_account is not None:
        return False
    return sum(_of_graphs(rank)) > _MOST * sum(row.kernels for row in rank.operators)


def _of_graphs(rank: RankResult) -> list[int]:
    return [row.kernels for row in rank.operators if launches_graph(row.operator.split(" ")[0])]
