# SPDX-License-Identifier: Apache-2.0
"""Who follows the training that runs now: one object, which every wrapped name of Megatron asks.

Each part registers itself here where it begins, so a wrapped name needs none of their modules, and
costs a look at an attribute where nobody has registered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from megatron.torch_profile.memory.rank_memory import RankMemory
    from megatron.torch_profile.metrics.run_metrics import Metrics
    from megatron.torch_profile.monitor.heartbeat import Heartbeat
    from megatron.torch_profile.plan.capture_plan import CapturePlan
    from megatron.torch_profile.publish.monitor_lines import MonitorLines
    from megatron.torch_profile.publish.window_results import WindowResults


class StepFollower(Protocol):
    """What the training loop tells: a recorder, or a rank that records nothing."""

    def begin_step(self, iteration: int) -> None:
        """`train_step` of this global iteration is about to run."""

    def end_step(self) -> None:
        """The iteration has ended, and the next one has not begun: only a loop that has attached
        itself says so."""

    def begin_pause(self) -> None:
        """Evaluation or a checkpoint is about to run."""

    def close(self, *, after_failure: bool = False) -> None:
        """Training ends, however it ends; after a failure of its own other ranks may be gone."""


class Idle:
    """A rank that records nothing."""

    def begin_step(self, iteration: int) -> None:
        """Nothing."""

    def end_step(self) -> None:
        """Nothing."""

    def begin_pause(self) -> None:
        """Nothing."""

    def close(self, *, after_failure: bool = False) -> None:
        """Nothing."""


@dataclass
class Followers:
    """Who follows the training that runs now.

    Attributes:
        plan: what is recorded, on every rank; None when nobody asked.
        steps: who records; `Idle` on a rank that records nothing.
        results: who tells what the windows' traces say, also right after training; None on a rank
            that tells of none.
        metrics: who measures every iteration; None where nobody asked.
        heartbeat: who notes where the training loop is; None where nobody asked.
        monitor_lines: who logs what the monitor has seen; None where nobody does.
        memory: who takes memory snapshots on this rank; None where nobody asked.
        followed: whether a training has been followed in this process, recording or not.
        stepped: whether it had an iteration.
        attached: whether a loop that is not Megatron's has attached itself.
        process_ends: whether Python has ended the script, and ends what is open.
    """

    plan: CapturePlan | None = None
    steps: StepFollower = field(default_factory=Idle)
    results: WindowResults | None = None
    metrics: Metrics | None = None
    heartbeat: Heartbeat | None = None
    monitor_lines: MonitorLines | None = None
    memory: RankMemory | None = None
    followed: bool = False
    stepped: bool = False
    attached: bool = False
    process_ends: bool = False


followers = Followers()
