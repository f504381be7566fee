# SPDX-License-Identifier: Apache-2.0
"""A CPU that waits for the GPU, and does not keep up at other times: waiting took its lead away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from megatron.torch_trace.analysis.findings.host.synchronisation import for_synchronisation
from megatron.torch_trace.analysis.findings.shares import by_iteration, milliseconds, within
from megatron.torch_trace.analysis.results.analysis import RankResult
from megatron.torch_trace.wording import number

_LEAST = 0.10
"""Of the window, on every rank: a CPU that never keeps up has no time to wait for the GPU. Where a
single rank does not wait, the other ranks may wait for that rank and not for their GPU."""
_TIMES = 2
"""In each iteration: to wait once, for the norm of the gradients or the loss, is usual."""


@dataclass(frozen=True, slots=True)
class LostLead:
    """The call in which the CPU waits longest.

    Args:
        text, advice: sentences.
        call, caller: see `SyncRow`.
        share: of the window, on the rank that waits least.
    """

    text: str
    advice: str
    call: str
    caller: str
    share: float


def lost_lead(ranks: Sequence[RankResult]) -> LostLead | None:
    """The longest such wait; None where the CPU seldom waits for the GPU.

    Args:
        ranks: that wait for their CPU, each with a window.
    """
    steps, what = by_iteration(ranks)
    each = len(ranks) * steps
    shares: dict[tuple[str, str], dict[int, float]] = {}
    totals: dict[tuple[str, str], tuple[int, int]] = {}
    for rank in ranks:
        for row in rank.host.syncs:
            key = row.call, row.caller
            mine = shares.setdefault(key, {})
            mine[rank.rank] = mine.get(rank.rank, 0.0) + row.time_ns / rank.window_ns
            calls, time = totals.get(key, (0, 0))
            totals[key] = calls + row.calls, time + row.time_ns
    least = {key: min(mine.values()) for key, mine in shares.items() if len(mine) == len(ranks)}
    often = {key: share for key, share in least.items() if totals[key][0] >= _TIMES * each}
    if not often or max(often.values()) < _LEAST:
        return None
    call, caller = key = max(often, key=lambda one: often[one])
    calls, time = totals[key]
    return LostLead(
        f" The CPU also waits for the GPU in {call} ({within(caller)}), {number(calls / each)} "
        f"times and {milliseconds(time / each)} in {what}; after each of these waits nothing is "
        "launched ahead.",
        for_synchronisation(call, ranks),
        call,
        caller,
        often[key],
    )
