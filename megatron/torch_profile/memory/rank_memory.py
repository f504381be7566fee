# SPDX-License-Identifier: Apache-2.0
"""Memory of one rank while it trains: the snapshots of its windows, its out-of-memory errors."""

from __future__ import annotations

import time
from typing import Any

from megatron.torch_profile.config import flag_of
from megatron.torch_profile.guard import Guard
from megatron.torch_profile.log import Slug, say, warn
from megatron.torch_profile.memory.blas_workspace import blas_workspace_bytes
from megatron.torch_profile.memory.history import AllocatorHistory, unavailable
from megatron.torch_profile.memory.out_of_memory import OutOfMemoryWatch
from megatron.torch_profile.memory.owners import owned_ranges, weight_bytes
from megatron.torch_profile.memory.snapshot_writer import SnapshotWriter, Target
from megatron.torch_profile.plan.capture_plan import CapturePlan
from megatron.torch_profile.plan.schedule import Window
from megatron.torch_trace.allocator.purpose.owners import Owners
from megatron.torch_trace.format.file_names import ARTIFACTS
from megatron.torch_trace.wording import iterations


class RankMemory:
    """What the flags about memory ask for on this rank; a failure costs that, and no more.

    Args:
        plan: what is captured.
        args: Megatron's arguments.
        model: Megatron's list of model chunks; None where it cannot be had.
        optimizer: Megatron's, or None.
    """

    def __init__(self, plan: CapturePlan, args: Any, model: Any, optimizer: Any) -> None:
        self._plan = plan
        self._args = args
        self._model, self._optimizer = model, optimizer
        self._rank = plan.topology.rank
        self._said: set[str] = set()
        self._guard = Guard(
            Slug.MEMORY_FAILED, f"rank {self._rank} writes no more memory snapshots"
        )
        self._writer = SnapshotWriter(self._rank, plan.config.exit_timeout)
        self._watch: OutOfMemoryWatch | None = None
        if plan.config.on_oom and plan.records_here:
            self._watch = self._guard(self._watched)

    @property
    def in_flight(self) -> int:
        """Snapshots that are not on disk yet."""
        return self._writer.in_flight

    def begin(self, plan: CapturePlan, window: Window) -> WindowMemory | None:
        """The first iteration of a window is about to begin.

        Args:
            plan: what is recorded in it.
            window: which one.
        """
        if not plan.config.records_history:
            return None
        flag = "memory_snapshot" if plan.config.memory_snapshot else "memory_timeline"
        if not self._available(flag):
            return None
        return self._guard(self._begin, plan, window)

    def wait(self) -> None:
        """Wait for snapshots that are being written, within the bound of the flag."""
        self._writer.wait()

    def close(self) -> None:
        """Training ends: what belongs to it is let go."""
        if self._watch is not None:
            self._watch.close()
        self._model = self._optimizer = None

    def _owners(self) -> Owners:
        ranges = owned_ranges(self._model, self._optimizer)
        return Owners(tuple(ranges), weight_bytes(self._model), blas_workspace_bytes())

    def _begin(self, plan: CapturePlan, window: Window) -> WindowMemory:
        megatrons = bool(getattr(self._args, "record_memory_history", False))
        return WindowMemory(self, plan, window, AllocatorHistory(plan.config, megatrons=megatrons))

    def _watched(self) -> OutOfMemoryWatch | None:
        if not self._available("on_oom"):
            return None
        return OutOfMemoryWatch(self._plan, self._args, self._model, self._owners)

    def _available(self, field: str) -> bool:
        why = unavailable()
        if why:
            self.say_once(f"{flag_of(field)} does nothing on rank {self._rank}: {why}")
        return why is None

    def say_once(self, line: str) -> None:
        """A line about whose history it is, or why there is none."""
        if line not in self._said:
            self._said.add(line)
            warn(Slug.MEMORY_HISTORY, "%s", line)

    def hand_over(self, memory: WindowMemory) -> None:
        """The window has ended: have its snapshot written."""
        self._guard(self._hand_over, memory)

    def _hand_over(self, memory: WindowMemory) -> None:
        began = time.monotonic()
        contents = memory.history.end()
        owners = self._guard(self._owners) or Owners()
        held = time.monotonic() - began
        folder = self._plan.window_folder(memory.window) / ARTIFACTS
        target = Target.of(folder, self._plan.trace_name().stem)
        self._writer.begin(contents, owners, target, held)


class WindowMemory:
    """The allocator's history of one window, from its first recorded iteration to its end.

    Args:
        rank: whose.
        plan: what is recorded in it.
        window: which one.
        history: has begun.
    """

    def __init__(
        self, rank: RankMemory, plan: CapturePlan, window: Window, history: AllocatorHistory
    ) -> None:
        self.window = window
        self.history = history
        self._rank = rank
        self._shared = history.shared
        number = plan.topology.rank
        if self._shared:
            rank.say_once(
                f"{self._shared}, so the memory snapshot of {iterations(window)} of rank {number} "
                "is taken from that history, which stays on: "
                f"{flag_of('memory_snapshot_entries')} and {flag_of('memory_snapshot_stacks')} "
                "do nothing"
            )
        else:
            say(
                Slug.MEMORY_HISTORY,
                "rank %d keeps the allocator's history of %s (%s entries, %s stacks)",
                number,
                iterations(window),
                f"{plan.config.memory_snapshot_entries:,}",
                plan.config.memory_snapshot_stacks.replace("none", "no"),
            )

    def end(self) -> None:
        """The window's last iteration is over: its snapshot is taken and written."""
        shared = self.history.shared
        if shared and shared != self._shared:
            self._rank.say_once(
                f"{shared}: it stays as user's code has left it, and the memory snapshot of "
                f"{iterations(self.window)} holds what there is of it"
            )
        self._rank.hand_over(self)

    def abandon(self) -> None:
        """The window leaves nothing."""
        self.history.close()
