# SPDX-License-Identifier: Apache-2.0
"""Findings about ranks that arrive last."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from megatron.torch_trace.analysis.communication.stragglers import Straggler
from megatron.torch_trace.analysis.findings.shares import milliseconds, severity
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding, RankResult
from megatron.torch_trace.wording import percent

_LEAST_SHARE = 0.02
"""Of the window, that each of the others waits."""
_LEAST_CALLS = 3
_MOSTLY = 0.6
"""Of these calls; by chance one of two ranks is last in half of them."""
_DIFFERENT = 0.02
"""Of the window, more than the median of the others: enough to explain such a wait."""

DIMENSION_NAMES = {
    "tp": "tensor-parallel",
    "pp": "pipeline",
    "dp": "data-parallel",
    "cp": "context-parallel",
    "ep": "expert-parallel",
    "edp": "expert data-parallel",
    "etp": "expert tensor-parallel",
    "tp-cp": "tensor- and context-parallel",
    "tp-dp": "tensor- and data-parallel",
    "gtp": "weight-gathering",
    "mp": "model-parallel",
    "embedding": "embedding",
    "default": "default-group",
}
_NOUNS = {
    "allreduce": "all-reduces",
    "allgather": "all-gathers",
    "reduce_scatter": "reduce-scatters",
    "all_to_all": "all-to-alls",
    "barrier": "barriers",
}


def straggler(analysis: Analysis) -> Iterator[Finding]:
    """A rank that the others of its group wait for, again and again."""
    results = {rank.rank: rank for rank in analysis.ranks}
    for one in analysis.stragglers:
        result = results[one.rank]
        hidden, lost = _hidden(one, list(analysis.ranks))
        share = lost / result.window_ns if result.window_ns else 0.0
        if (
            share < _LEAST_SHARE
            or one.calls_there < _LEAST_CALLS
            or one.share_there is None
            or one.share_there < _MOSTLY
        ):
            continue
        cause, difference, advice = _cause(result, list(analysis.ranks))
        kind = DIMENSION_NAMES.get(one.dimension or "", "")
        noun = _NOUNS.get(one.collective or "", f"{one.collective} calls")
        where = f"{kind} {noun}".strip()
        yield Finding(
            "straggler",
            severity(share),
            f"Rank {one.rank} arrives last in {percent(one.share_there)} of the {where}; each of "
            f"the others waits {milliseconds(one.delay_ns)} for it{hidden}, {percent(share)} of "
            f"the window{cause}.",
            _evidence(one, lost, share, difference),
            advice,
            share,
        )


def _hidden(one: Straggler, ranks: list[RankResult]) -> tuple[str, int]:
    """What of the delay may cost time: not what the others compute meanwhile.

    Nobody loses more by waiting than its communication is exposed.
    """
    exposed = [
        rank.breakdown.exposed_communication
        for rank in ranks
        if rank.rank != one.rank and rank.breakdown is not None
    ]
    most = max(exposed, default=one.delay_ns)
    if one.delay_ns <= most:
        return "", one.delay_ns
    return f", of which at most {milliseconds(most)} without computing", most


def _evidence(
    one: Straggler, lost: int, share: float, difference: dict[str, float]
) -> dict[str, object]:
    return {
        "rank": one.rank,
        "last_arrivals": one.last_arrivals,
        "calls": one.calls,
        "dimension": one.dimension,
        "collective": one.collective,
        "calls_of_these": one.calls_there,
        "share_of_these": one.share_there,
        "imposed_wait_ns": one.imposed_wait_ns,
        "delay_ns": one.delay_ns,
        "lost_ns": lost,
        "share": share,
        "more_than_median_of_others": difference,
    }


def _cause(late: RankResult, ranks: list[RankResult]) -> tuple[str, dict[str, float], str]:
    """What the late rank does more than the others: its own time, not its waiting."""
    others = [rank for rank in ranks if rank.rank != late.rank and rank.breakdown is not None]
    general = (
        "Compare its host with the others (CPU frequency, other processes, NUMA binding), and "
        "compare the ranks on one timeline with `torch-trace merge --align`."
    )
    if late.breakdown is None or not others:
        return "", {}, general
    compute = late.breakdown.compute - median(
        rank.breakdown.compute for rank in others if rank.breakdown
    )
    # Idle while the next work is launched already is waiting for others; this is not.
    idle = _own_idle(late) - median(_own_idle(rank) for rank in others)
    data = late.host.idle.data_ns - median(rank.host.idle.data_ns for rank in others)
    difference = {"compute_ns": compute, "cpu_idle_ns": idle, "data_ns": data}
    least = _DIFFERENT * late.window_ns
    if data >= least and data >= idle / 2:
        return (
            f"; its data loader takes {milliseconds(data)} more than the others'",
            difference,
            "Give its data loader more workers (`--num-workers`), check its host's storage.",
        )
    if idle >= least and idle >= compute:
        return (
            f"; its GPU waits for its CPU {milliseconds(idle)} more than the others'",
            difference,
            "Look at that rank's CPU side: something between its launches (Python, data, another "
            "process, a slow host) that the other ranks do not have.",
        )
    if compute >= least:
        return (
            f"; it computes {milliseconds(compute)} longer than the others",
            difference,
            "Look for more work on that rank (uneven layers, experts or sequence lengths) or a "
            "slower GPU (clock, temperature, power limit).",
        )
    return "", difference, general


def _own_idle(rank: RankResult) -> int:
    idle = rank.host.idle
    return idle.cpu_ns + idle.data_ns + idle.sync_ns


RULES = (straggler,)
