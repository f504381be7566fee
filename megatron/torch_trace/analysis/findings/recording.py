# SPDX-License-Identifier: Apache-2.0
"""Findings about the recording itself: what must be known before its numbers are believed."""

from __future__ import annotations

from collections.abc import Iterator

from megatron.torch_trace.analysis.findings.shares import known, mean_share, over, severity
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding, RankResult
from megatron.torch_trace.wording import percent

_OVERHEAD = 0.02
"""Of the window: every share in the report may be off by as much."""
_BEFORE = 0.05
"""Of the pieces of work: so many have no operator, module or step of their own."""
_CPU = "cpu"  # what capture writes as the device of a rank without a GPU


def recorded_on_the_cpu(analysis: Analysis) -> Iterator[Finding]:
    """A recording with neither GPU work nor launches: the CPU's time is the answer."""
    ranks = [rank for rank in analysis.ranks if rank.unknown and _is_of_the_cpu(rank)]
    if not ranks:
        return
    trained = all(rank.device == _CPU for rank in ranks)
    title = (
        f"Trained on the CPU ({over(ranks)}): there is no GPU to tell of."
        if trained
        else f"Only the CPU was recorded ({over(ranks)}): no GPU work and no launches."
    )
    yield Finding(
        "recorded_on_the_cpu",
        "info",
        title,
        {"ranks": [rank.rank for rank in ranks]},
        "All times are of the CPU."
        if trained
        else "All times are of the CPU. If training used a GPU, record its activity too: "
        "`ProfilerActivity.CUDA` in torch.profiler, `--torch-profile-activities cpu cuda` here.",
    )


def missing_gpu_events(analysis: Analysis) -> Iterator[Finding]:
    """Launches without a kernel: utilisation is unknown, and says so."""
    blind = [
        rank
        for rank in analysis.ranks
        if rank.unknown
        and not _is_of_the_cpu(rank)
        and rank.launches.clock_offset_ns is None
        and not rank.other_maker
    ]
    if not blind:
        return
    launches = sum(rank.launches.kernel_launches for rank in blind)
    without = sum(rank.launches.without_kernel for rank in blind)
    where = ", ".join(str(rank.rank) for rank in blind[:8]) + (", ..." if len(blind) > 8 else "")
    fact = (
        f"{without:,} of {launches:,} launches have no kernel"
        if launches
        else "there is no GPU work in the trace"
    )
    yield Finding(
        "missing_gpu_events",
        "high",
        f"Utilisation is unknown on rank {where}: {fact}.",
        {
            "ranks": [rank.rank for rank in blind],
            "launches": launches,
            "without_kernel": without,
        },
        "Record again with `--torch-profile-activities cpu cuda`, without another profiler "
        "(Nsight, DCGM) on the same GPUs, and with a shorter window.",
        1.0,
    )


def _is_of_the_cpu(rank: RankResult) -> bool:
    return rank.cpu is not None or rank.device == _CPU


def profiler_overhead(analysis: Analysis) -> Iterator[Finding]:
    """Time in which the profiler itself held up the CPU."""
    ranks = list(analysis.ranks)
    share = mean_share(ranks, lambda rank: rank.host.overhead_ns)
    if share < _OVERHEAD:
        return
    yield Finding(
        "profiler_overhead",
        severity(share) if share < 0.15 else "medium",
        f"The profiler itself held up the CPU for {percent(share)} of the window ({over(ranks)}).",
        {"share": share, "overhead_ns": {rank.rank: rank.host.overhead_ns for rank in ranks}},
        "Record less at once: no `--torch-profile-with-stack`, and one warm-up iteration more "
        "(`--torch-profile-warmup 2`).",
        share,
    )


def launched_before(analysis: Analysis) -> Iterator[Finding]:
    """The GPU runs far behind the CPU, so the window shows work of earlier steps."""
    ranks = known(analysis)
    early = [
        rank
        for rank in ranks
        if rank.launches.work_without_launch > _BEFORE * sum(row.calls for row in rank.kernels)
    ]
    if not early:
        return
    counts = {rank.rank: rank.launches.work_without_launch for rank in early}
    total = sum(row.calls for rank in early for row in rank.kernels)
    share = sum(counts.values()) / total if total else 0.0
    yield Finding(
        "launched_before_window",
        "info",
        f"{percent(share)} of the GPU work in the window was launched before it began "
        f"({over(early)}): the GPU runs behind the CPU; that work's operators are unknown.",
        {"work_without_launch": counts, "share": share},
        "Read the window as a whole rather than single steps, or record more iterations with "
        "`--torch-profile-active`.",
    )


def recompilations(analysis: Analysis) -> Iterator[Finding]:
    """torch.compile at work within the window, where all should be compiled: seconds of CPU."""
    names = ("recompiles", "graph_breaks", "recompile_limit_hits")
    ranks = [rank for rank in analysis.ranks if any(rank.compile.get(name) for name in names)]
    if not ranks:
        return
    worst = max(ranks, key=lambda rank: [rank.compile.get(name, 0) for name in names])
    again, breaks, limits = (worst.compile.get(name, 0) for name in names)
    yield Finding(
        "recompilations",
        "high" if any(rank.compile.get(names[-1]) for rank in ranks) else "medium",
        f"torch.compile was at work within the window: {again} recompilation(s), {breaks} graph "
        f"break(s), {limits} function(s) at the recompile limit (rank {worst.rank}, the worst of "
        f"{len(ranks)}).",
        {name: {rank.rank: rank.compile.get(name, 0) for rank in ranks} for name in names},
        "See why with `TORCH_LOGS=recompiles,graph_breaks`; shapes that change need "
        "`mark_dynamic`, and a function at the limit runs without its fused kernels from then on.",
    )


def fused_kernels_refused(analysis: Analysis) -> Iterator[Finding]:
    """A kernel that does in many passes what its fused form does in one."""
    name = "fused_kernels_refused"
    ranks = [rank for rank in analysis.ranks if rank.compile.get(name)]
    if ranks:
        yield Finding(
            name,
            "medium",
            f"A fused kernel refused its inputs, for instance a weight in fp32 under activations "
            f"in bf16 (rank {ranks[0].rank}{', ...' if len(ranks) > 1 else ''}).",
            {name: {rank.rank: rank.compile[name] for rank in ranks}},
            "torch's warning in the log of that rank names the types; give weights and activations "
            "one type, or use Transformer Engine's or Apex's norm.",
        )


RULES = (
    recorded_on_the_cpu,
    missing_gpu_events,
    profiler_overhead,
    launched_before,
    recompilations,
    fused_kernels_refused,
)
