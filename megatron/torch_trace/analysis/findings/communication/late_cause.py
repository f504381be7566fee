# SPDX-License-Identifier: Apache-2.0
"""Why a rank is late: what it does more than the ranks that wait for it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median

from megatron.torch_trace.analysis.findings.host.garbage_collector import against_collections
from megatron.torch_trace.analysis.findings.megatron_flags import flags
from megatron.torch_trace.analysis.findings.shares import an_iteration
from megatron.torch_trace.analysis.host.garbage_collections import COLLECTOR
from megatron.torch_trace.analysis.results.analysis import RankResult

DATA, CPU, COMPUTE, UNKNOWN = "data", "cpu", "compute", ""
_DIFFERENT = 0.02
"""Of the window, more than the median of the others: enough to explain such a wait."""

_BUSY = (
    "Look at the CPU of rank {rank}: it does something between launches (Python, data, another "
    "process, a slow host) that the CPUs of the other ranks do not do."
)


@dataclass(frozen=True, slots=True)
class LateCause:
    """Why a rank is late.

    Args:
        kind: `data`, `cpu` or `compute`; "" where nothing is different.
        text: a sentence with a blank before it; "" where nothing is different.
        difference: ns more than the median of the ranks that wait.
        advice: what to do.
        explained_ns: what of it the profiler's slowdown explains.
    """

    kind: str
    text: str
    difference: dict[str, float]
    advice: str
    explained_ns: int = 0


def late_cause(
    late: RankResult,
    ranks: Sequence[RankResult],
    peers: Collection[int],
    than: str,
    dimension: str | None,
) -> LateCause:
    """What the late rank does more than others: its own time, not its waiting.

    Args:
        late: the rank.
        ranks: all of them.
        peers: ranks that wait for it; another stage or layout has other work.
        than: what these are called, `the other ranks`.
        dimension: of the collectives in which it is late.
    """
    known = [rank for rank in ranks if rank.rank != late.rank and rank.breakdown is not None]
    waiting = frozenset(peers)
    others = [rank for rank in known if rank.rank in waiting] or known
    general = (
        f"Compare the host of rank {late.rank} with the others (CPU frequency, other processes, "
        "NUMA binding), and compare the ranks on one timeline with `torch-trace merge --align`."
    )
    if late.breakdown is None or not others:
        return LateCause(UNKNOWN, "", {}, general)
    compute = late.breakdown.compute - median(
        rank.breakdown.compute for rank in others if rank.breakdown
    )
    # Idle while the next work is launched already is waiting for others; this is not.
    idle = _own_idle(late) - median(_own_idle(rank) for rank in others)
    data = late.host.idle.data_ns - median(rank.host.idle.data_ns for rank in others)
    difference = {"compute_ns": compute, "cpu_idle_ns": idle, "data_ns": data}
    least = _DIFFERENT * late.window_ns
    if data >= least and data >= idle / 2:
        return LateCause(
            DATA,
            f" On rank {late.rank} the GPU waits {an_iteration(data, late)} longer for the "
            f"data loader than on {than}.",
            difference,
            f"Check the storage of rank {late.rank}'s host, and give the data loader more workers "
            f"{flags(list(ranks), '`--num-workers`')}.",
        )
    if idle >= least and idle >= compute:
        collecting = _collecting(late) - median(map(_collecting, others)) >= idle / 2
        most = f", most of it while {COLLECTOR} runs" if collecting else ""
        return LateCause(
            CPU,
            f" On rank {late.rank} the GPU waits {an_iteration(idle, late)} longer for the CPU "
            f"than on {than}{most}.",
            difference,
            against_collections(ranks) if collecting else _BUSY.format(rank=late.rank),
            _explained(late, others),
        )
    if compute >= least:
        return LateCause(
            COMPUTE,
            f" Rank {late.rank} computes {an_iteration(compute, late)} longer than {than}.",
            difference,
            _for_compute(late, ranks, dimension),
        )
    return LateCause(UNKNOWN, "", difference, general)


def _for_compute(late: RankResult, ranks: Sequence[RankResult], dimension: str | None) -> str:
    """Where ranks exchange tokens, the first suspect is how many of them each one is given."""
    if dimension == "ep":
        balance = flags(list(ranks), "`--moe-aux-loss-coeff`, `--moe-expert-capacity-factor`")
        return (
            f"See whether the experts of rank {late.rank} are given more tokens than those of the "
            f"other ranks, and balance them {balance}; or look for a slower GPU (clock, "
            "temperature, power limit)."
        )
    return (
        f"Look for more work on rank {late.rank} (uneven layers, experts or sequence lengths), or "
        "for a slower GPU (clock, temperature, power limit)."
    )


def _explained(late: RankResult, others: Sequence[RankResult]) -> int:
    """What of a late CPU the slowdown explains: it slows all ranks, and one that launches more the
    more; so what is the same everywhere explains no lateness."""
    own = late.launches.launches
    more = own - median(rank.launches.launches for rank in others)
    return round(late.slowed_ns * more / own) if own and more > 0 else 0


def _collecting(rank: RankResult) -> int:
    return rank.host.collections.idle_ns if rank.host.collections else 0


def _own_idle(rank: RankResult) -> int:
    idle = rank.host.idle
    return idle.cpu_ns + idle.data_ns + idle.sync_ns
