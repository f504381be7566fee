# SPDX-License-Identifier: Apache-2.0
"""The training loop waits in the data loader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from megatron.torch_trace.analysis.findings.examples import most_idle
from megatron.torch_trace.analysis.findings.megatron_flags import flag_value, flags
from megatron.torch_trace.analysis.findings.shares import known, milliseconds, severity
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding, RankResult
from megatron.torch_trace.wording import percent

SLUG = "data_loader"
_LEAST = 0.02
"""Of the window; a loader with a reserve takes next to nothing."""


def rule(analysis: Analysis) -> Iterator[Finding]:
    """The rank whose GPU is idle longest meanwhile."""
    ranks = known(analysis)
    waiting = [rank for rank in ranks if _in_loader(rank)[1] > _LEAST * rank.window_ns]
    worst = max(waiting, key=_in_loader, default=None)
    if worst is None:
        return
    idle, time = _in_loader(worst)
    steps = worst.host.data_loading
    calls = sum(step.calls for step in steps)
    # While the GPU works off what was launched before, waiting for data costs nothing.
    lost = idle / worst.window_ns
    what = "iteration" if worst.steps else "window"
    yield Finding(
        SLUG,
        severity(lost),
        f"On {worst.name} the training loop spends {percent(time / worst.window_ns)} of the "
        f"{what} waiting for the data loader, {milliseconds(time / max(calls, 1))} for a batch. "
        f"The GPU is idle for {percent(idle / time)} of that time.",
        {
            "share": time / worst.window_ns,
            "idle_share": lost,
            "rank": worst.rank,
            "steps": {step.step: step.time_ns for step in steps if step.step is not None},
            "calls": calls,
            "idle_ns": idle,
        },
        for_data_loader(ranks),
        lost,
        most_idle(max(analysis.ranks, key=lambda rank: rank.host.idle.data_ns)),
    )


def _in_loader(rank: RankResult) -> tuple[int, int]:
    """How long the GPU was idle while the loop was in the loader, and how long the loop was."""
    steps = rank.host.data_loading
    return sum(step.idle_ns for step in steps), sum(step.time_ns for step in steps)


def for_data_loader(ranks: Sequence[RankResult]) -> str:
    """How to get batches faster."""
    given = flag_value(ranks, "--num-workers") or ""
    workers = int(given) if given.isdecimal() else 0
    more = f"more than its {workers} workers" if workers >= 8 else "more workers"
    flag = "`--num-workers`" if workers >= 8 else "`--num-workers 8`"
    return (
        f"Give the data loader {more} {flags(ranks, flag)}, and look at the storage and at what "
        "the dataset does with each sample."
    )
