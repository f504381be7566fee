# SPDX-License-Identifier: Apache-2.0
"""A rank that the others of its group wait for, again and again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from megatron.torch_trace.analysis.communication.dimensions import ADJECTIVES
from megatron.torch_trace.analysis.communication.stragglers import Straggler
from megatron.torch_trace.analysis.findings.examples import largest
from megatron.torch_trace.analysis.findings.megatron_flags import flags
from megatron.torch_trace.analysis.findings.shares import milliseconds, severity
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding, RankResult
from megatron.torch_trace.analysis.timeline.moment import Example
from megatron.torch_trace.wording import percent

SLUG = "straggler"
_LEAST_SHARE = 0.02
"""Of the window, that each of the others waits."""
_LEAST_CALLS = 3
_MOSTLY = 0.6
"""Of these calls; by chance one of two ranks is last in half of them."""
_DIFFERENT = 0.02
"""Of the window, more than the median of the others: enough to explain such a wait."""

_NOUNS = {
    "allreduce": "all-reduces",
    "allgather": "all-gathers",
    "reduce_scatter": "reduce-scatters",
    "all_to_all": "all-to-alls",
    "barrier": "barriers",
}


def rule(analysis: Analysis) -> Iterator[Finding]:
    """One finding for each rank that delays the others."""
    results = {rank.rank: rank for rank in analysis.ranks}
    for one in analysis.stragglers:
        result = results[one.rank]
        lost = _lost(one, list(analysis.ranks))
        share = lost / result.window_ns if result.window_ns else 0.0
        if (
            share < _LEAST_SHARE
            or one.calls_there < _LEAST_CALLS
            or one.share_there is None
            or one.share_there < _MOSTLY
        ):
            continue
        cause = _cause(result, list(analysis.ranks))
        explained = cause.explained_ns
        remaining = share
        if explained:
            remaining = max(0, lost - explained) / (result.window_ns - result.slowed_ns)
            if remaining < _LEAST_SHARE:
                continue
        yield Finding(
            SLUG,
            severity(remaining),
            f"Rank {one.rank} arrives last in {percent(one.share_there)} of the {_calls(one)}. "
            f"{_delay(one, lost, share)}.{cause.text}{_remains(explained, remaining)}",
            {**_evidence(one, lost, share, cause.difference), "explained_ns": explained},
            cause.advice,
            remaining,
            _example(one),
        )


def _calls(one: Straggler) -> str:
    kind = ADJECTIVES.get(one.dimension or "", "")
    return f"{kind} {_NOUNS.get(one.collective or '', f'{one.collective} calls')}".strip()


def _delay(one: Straggler, lost: int, share: float) -> str:
    waits = f"Each of the other ranks waits {milliseconds(one.delay_ns)} for rank {one.rank}"
    if lost == one.delay_ns:
        return f"{waits}, {percent(share)} of the window"
    return (
        f"{waits}; for at most {milliseconds(lost)} of that, {percent(share)} of the window, it "
        "computes nothing"
    )


def _example(one: Straggler) -> Example | None:
    return largest((row.imposed_wait_ns, one.rank, row.worst) for row in one.by_collective)


def _lost(one: Straggler, ranks: list[RankResult]) -> int:
    """What of the delay may cost time: not what the others compute meanwhile.

    Nobody loses more by waiting than its communication is exposed.
    """
    exposed = [
        rank.breakdown.exposed_communication
        for rank in ranks
        if rank.rank != one.rank and rank.breakdown is not None
    ]
    return min(one.delay_ns, max(exposed, default=one.delay_ns))


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


@dataclass(frozen=True, slots=True)
class _Cause:
    """Why a rank is late: a sentence, the numbers, the advice, and what the profiler explains."""

    text: str
    difference: dict[str, float]
    advice: str
    explained_ns: int = 0


def _remains(explained_ns: int, remaining: float) -> str:
    if not explained_ns:
        return ""
    return (
        f" The profiler's slowdown explains {milliseconds(explained_ns)}, because this rank "
        "launches "
        f"more than the others; {percent(remaining)} of the undisturbed iteration remains."
    )


def _explained(late: RankResult, others: list[RankResult]) -> int:
    """What of a late CPU the slowdown explains: it slows all ranks, and one that launches more the
    more; so what is the same everywhere explains no lateness."""
    own = late.launches.launches
    more = own - median(rank.launches.launches for rank in others)
    return round(late.slowed_ns * more / own) if own and more > 0 else 0


def _cause(late: RankResult, ranks: list[RankResult]) -> _Cause:
    """What the late rank does more than the others: its own time, not its waiting."""
    others = [rank for rank in ranks if rank.rank != late.rank and rank.breakdown is not None]
    general = (
        f"Compare the host of rank {late.rank} with the others (CPU frequency, other processes, "
        "NUMA binding), and compare the ranks on one timeline with `torch-trace merge --align`."
    )
    if late.breakdown is None or not others:
        return _Cause("", {}, general)
    compute = late.breakdown.compute - median(
        rank.breakdown.compute for rank in others if rank.breakdown
    )
    # Idle while the next work is launched already is waiting for others; this is not.
    idle = _own_idle(late) - median(_own_idle(rank) for rank in others)
    data = late.host.idle.data_ns - median(rank.host.idle.data_ns for rank in others)
    difference = {"compute_ns": compute, "cpu_idle_ns": idle, "data_ns": data}
    least = _DIFFERENT * late.window_ns
    if data >= least and data >= idle / 2:
        return _Cause(
            f" On rank {late.rank} the GPU waits {milliseconds(data)} longer for the data loader "
            "than on the other ranks.",
            difference,
            f"Check the storage of rank {late.rank}'s host, and give the data loader more workers "
            f"{flags(ranks, '`--num-workers`')}.",
        )
    if idle >= least and idle >= compute:
        return _Cause(
            f" On rank {late.rank} the GPU waits {milliseconds(idle)} longer for the CPU than on "
            "the other ranks.",
            difference,
            f"Look at the CPU of rank {late.rank}: it does something between launches (Python, "
            "data, another process, a slow host) that the CPUs of the other ranks do not do.",
            _explained(late, others),
        )
    if compute >= least:
        return _Cause(
            f" Rank {late.rank} computes {milliseconds(compute)} longer than the other ranks.",
            difference,
            f"Look for more work on rank {late.rank} (uneven layers, experts or sequence lengths), "
            "or for a slower GPU (clock, temperature, power limit).",
        )
    return _Cause("", difference, general)


def _own_idle(rank: RankResult) -> int:
    idle = rank.host.idle
    return idle.cpu_ns + idle.data_ns + idle.sync_ns
