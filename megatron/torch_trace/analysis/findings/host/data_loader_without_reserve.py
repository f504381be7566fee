# SPDX-License-Identifier: Apache-2.0
"""The data loader keeps up only because the profiler slows the loop down."""

from __future__ import annotations

from collections.abc import Iterator

from megatron.torch_trace.analysis.findings.host.data_loader import for_data_loader
from megatron.torch_trace.analysis.findings.shares import milliseconds
from megatron.torch_trace.analysis.host.data_loader import LoaderSupply
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding, RankResult
from megatron.torch_trace.wording import percent

SLUG = "data_loader_without_reserve"
_LEAST = 0.6
_HARDLY_ANY = 0.8
"""Use of the loader: a loop 1.7, or 1.25, times as fast without the profiler waits for it. Where it
is known how fast that is, this is the use by such a loop, and less than `_HARDLY_ANY` is enough."""


def rule(analysis: Analysis) -> Iterator[Finding]:
    """The rank whose loader is busiest."""
    supplied = [rank for rank in analysis.ranks if rank.host.loader_supply is not None]
    worst = max(supplied, key=_use, default=None)
    if worst is None or worst.host.loader_supply is None:
        return
    supply, slowdown = worst.host.loader_supply, worst.slowdown
    if _use(worst) < (_LEAST if slowdown is None else _HARDLY_ANY):
        return
    use = min(supply.use, 1.0)
    yield Finding(
        SLUG,
        "high" if _use(worst) >= (_HARDLY_ANY if slowdown is None else 1.0) else "medium",
        f"On {worst.name} the data loader is busy for {percent(use)} of the time: it "
        f"needs {milliseconds(supply.batch_ns)} for a batch, and the training loop, which the "
        "profiler slows down, "
        f"asks for a batch every {milliseconds(supply.interval_ns)}. {_without(supply, slowdown)}",
        {
            "rank": worst.rank,
            "batch_ns": supply.batch_ns,
            "interval_ns": supply.interval_ns,
            "batches": supply.batches,
            "use": supply.use,
            "undisturbed_use": None if slowdown is None else _use(worst),
        },
        for_data_loader(analysis.ranks),
        use,
    )


def _use(rank: RankResult) -> float:
    """Of the loop without the profiler, as far as that is known."""
    supply = rank.host.loader_supply
    return supply.use * max(1.0, rank.slowdown or 1.0) if supply is not None else 0.0


def _without(supply: LoaderSupply, slowdown: float | None) -> str:
    if slowdown is None:
        return "Without the profiler the loop may have to wait for data."
    interval = supply.interval_ns / max(1.0, slowdown)
    return f"Without the profiler the loop asks for a batch every {milliseconds(interval)}."
