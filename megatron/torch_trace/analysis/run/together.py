# SPDX-License-Identifier: Apache-2.0
"""From ranks on their own to the whole answer: what only several of them can tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from megatron.torch_trace.analysis.communication.matching import match
from megatron.torch_trace.analysis.communication.stragglers import find_stragglers, waits_of
from megatron.torch_trace.analysis.findings import find as find_findings
from megatron.torch_trace.analysis.gpu_work.mfu import compute_mfu
from megatron.torch_trace.analysis.results.analysis import Analysis, SkippedFile
from megatron.torch_trace.analysis.results.stage_work import stage_work
from megatron.torch_trace.analysis.results.summary import summarise
from megatron.torch_trace.analysis.run.rank import RankOutcome
from megatron.torch_trace.analysis.run.rank_waits import WaitingRanks
from megatron.torch_trace.analysis.run.recorded import Recorded, without_collecting


def together(known: Recorded, model_flops: float | None = None) -> Analysis:
    """All ranks in one analysis.

    Args:
        known: the ranks.
        model_flops: see `analyze`.
    """
    with without_collecting():
        return _together(known.by_rank, known.skipped, model_flops, complete=known.complete)


def _together(
    by_rank: Mapping[int, RankOutcome],
    skipped: list[SkippedFile],
    model_flops: float | None,
    *,
    complete: bool,
) -> Analysis:
    matched = match({rank: outcome.calls for rank, outcome in by_rank.items()})
    bases = {rank: outcome.result.base_ns for rank, outcome in by_rank.items()}
    waits = find_stragglers(matched, bases)
    results, waiting = [], WaitingRanks()
    for position, outcome in enumerate(by_rank.values()):
        calls = outcome.calls
        result = outcome.result
        if waits.matched_calls:
            own = waits_of(matched, waits, position, calls.end - calls.start)
            result = waiting.with_waits(result, calls, own)
        results.append(result)
    ranks = tuple(results)
    world_size = max((one.world_size or 0 for one in ranks), default=0) or None
    missing = None
    if world_size and complete and all(one.is_rank_known for one in ranks):
        missing = tuple(rank for rank in range(world_size) if rank not in by_rank)
    recorded = [one.model_flops for one in ranks if one.model_flops]
    summary = summarise(ranks)
    mfu = compute_mfu(
        model_flops=recorded[0] if recorded else model_flops,
        source="trace" if recorded else "--model-flops" if model_flops else None,
        iteration_ns=summary.iteration_ns,
        gpus=world_size,
        device=next((one.device for one in ranks if one.device), None),
        undisturbed_ns=summary.undisturbed_iteration_ns,
        tokens=next((one.tokens for one in ranks if one.tokens), None),
    )
    analysis = Analysis(
        ranks=ranks,
        summary=summary,
        missing_ranks=missing,
        clocks=waits.clocks,
        stragglers=waits.stragglers,
        worst_call=waits.worst,
        matched_calls=waits.matched_calls,
        mfu=mfu,
        findings=(),
        skipped_files=tuple(skipped),
        stages=stage_work(ranks),
    )
    return replace(analysis, findings=find_findings(analysis))
