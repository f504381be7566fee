# SPDX-License-Identifier: Apache-2.0
"""What of the idle time would be there without the profiler.

The profiler makes the CPU slower, so a window is longer than its iterations are without it, and in
most of what it is longer the GPU waits for the CPU: first because work is not launched yet, then
because its launch is on its way. What the slowdown explains so is no finding.

    recorded     |#### idle ####|######|          undisturbed   |## idle|######|
    explained     [------)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from megatron.torch_trace.analysis.results.analysis import RankResult
from megatron.torch_trace.wording import percent


@dataclass(frozen=True, slots=True)
class UndisturbedIdle:
    """Idle time of one rank less what the slowdown explains; all as recorded where that is unknown.

    Args:
        window_ns: length of the window without the slowdown.
        cpu_ns, gpu_ns: what remains of these causes, see `host.IdleCauses`.
        explained_cpu_ns, explained_gpu_ns: what the slowdown explains of them.
    """

    window_ns: int
    cpu_ns: int
    gpu_ns: int
    explained_cpu_ns: int
    explained_gpu_ns: int

    @classmethod
    def of(cls, rank: RankResult) -> UndisturbedIdle:
        """The idle time, ns, of a rank whose utilisation is known.

        Source: docs/computed.md, "Undisturbed iteration".
        """
        idle, slowed = rank.host.idle, rank.slowed_ns
        held = rank.host.not_started.held_ns if rank.host.not_started else 0
        by_cpu = min(slowed, idle.cpu_ns)
        # What an event or another process holds up for long is not the profiler's doing.
        by_gpu = min(slowed - by_cpu, max(0, idle.gpu_ns - held))
        return cls(
            rank.window_ns - slowed, idle.cpu_ns - by_cpu, idle.gpu_ns - by_gpu, by_cpu, by_gpu
        )

    @property
    def cpu_share(self) -> float:
        """Of the window without the slowdown."""
        return self.cpu_ns / self.window_ns if self.window_ns > 0 else 0.0

    @property
    def gpu_share(self) -> float:
        """Of the window without the slowdown."""
        return self.gpu_ns / self.window_ns if self.window_ns > 0 else 0.0


def of_all(ranks: Sequence[RankResult]) -> dict[int, UndisturbedIdle]:
    """By rank."""
    return {rank.rank: UndisturbedIdle.of(rank) for rank in ranks}


def what_remains(
    ranks: Sequence[RankResult],
    explained: Callable[[UndisturbedIdle], int],
    remaining: float,
) -> str:
    """A sentence of a finding that the profiler makes worse; nothing where it explains nothing.

    Args:
        ranks: whom the finding is of.
        explained: the part of it that the slowdown explains.
        remaining: share of the undisturbed iteration that remains.
    """
    share = fmean(explained(UndisturbedIdle.of(rank)) / rank.window_ns for rank in ranks)
    if share <= 0:
        return ""
    return (
        f" The profiler's slowdown explains {percent(share)} of the window; "
        f"{percent(remaining)} of the undisturbed iteration remains."
    )
