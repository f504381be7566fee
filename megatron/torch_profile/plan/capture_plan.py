# SPDX-License-Identifier: Apache-2.0
"""CapturePlan: which ranks, iterations and files. Decided once per process, then only read.

`check` refuses what no run could do, as soon as arguments are parsed. `agree` decides for real,
on all ranks together, when Megatron's process groups exist and the iteration to start from is
known; a mistake that shows only then ends all ranks, before training.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from megatron.torch_profile.config import TorchProfileConfig, flag_of
from megatron.torch_profile.log import environment_rank
from megatron.torch_profile.plan import (
    needed_flags,
    ranks,
    run_folder,
    schedule,
    slurm,
    topology,
    training_length,
    watch_flags,
)
from megatron.torch_profile.plan.schedule import Schedule, Span, Window
from megatron.torch_profile.plan.switched_on import switched_on
from megatron.torch_profile.plan.topology import CPU, Topology
from megatron.torch_profile.plan.trace_size import Estimate, estimate
from megatron.torch_profile.plan.training_loop import MEGATRONS_OWN, NO_LAST, TrainingLoop
from megatron.torch_trace import wording
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.format.file_names import TraceName, WindowName

_SHOWN_WINDOWS = 5
_LEAST = {
    "memory_snapshot_entries": 1,
    "monitor_interval": 1,
    "trigger_windows": 1,
    "trigger_apart": 0,
    "spans_depth": 1,
    "exit_timeout": 0,
    "max_trace_mb": 1,
}


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """What will be captured, in terms of this run."""

    config: TorchProfileConfig
    topology: Topology
    ranks: tuple[int, ...]
    schedule: Schedule
    run_folder: Path
    unfinished: tuple[Path, ...] = ()
    """Traces in the same folder that dead runs did not finish, as rank 0 sees them."""
    expected: Estimate | None = None
    """Size of the first trace."""
    restarts: int = 0
    """How often SLURM has requeued this job."""
    follows: Path | None = None
    """The run that the requeued job left before, as rank 0 sees it."""

    @property
    def records_here(self) -> bool:
        """Whether this process is one of the profiled ranks."""
        return self.topology.rank in self.ranks

    @property
    def writers_here(self) -> int:
        """How many profiled ranks share this process's node, and so its disks."""
        host = self.topology.me.host
        return sum(self.topology.members[rank].host == host for rank in self.ranks) or 1

    @property
    def activities(self) -> tuple[str, ...]:
        """What is recorded here: without a GPU only the CPU's side."""
        if self.topology.me.device == CPU:
            return ("cpu",)
        return tuple(self.config.activities)

    def window_folder(self, window: Window) -> Path:
        """Folder of a window's traces."""
        return self.run_folder / str(WindowName(window.first, window.last))

    def trace_name(self, *, partial: bool = False) -> TraceName:
        """Name of this rank's trace in any window."""
        return TraceName(
            self.topology.rank, self.topology.layout.world_size, self.config.compression, partial
        )

    def describe(self) -> str:
        """The plan in words, one fact a line, in global iterations."""
        windows = list(islice(self.schedule, _SHOWN_WINDOWS + 1))
        shown = ", ".join(str(window) for window in windows[:_SHOWN_WINDOWS])
        more = ", ..." if len(windows) > _SHOWN_WINDOWS else ""
        which = "each" if len(windows) > 1 else "the window"
        warmup = f" (warm-up {windows[0].warmup} before {which})" if windows else ""
        if windows and not windows[0].warmup:
            warmup = " (no warm-up)"
        on = switched_on(self.config)
        lines = [
            f"ranks: {wording.ranks(self.ranks, most=len(self.ranks))} ({self.topology.layout})",
            f"iterations: {shown}{more}{warmup}; this process runs {self.schedule.span}"
            if windows
            else f"iterations: none of those asked for; this process runs {self.schedule.span}"
            if self.schedule.span.first <= self.schedule.span.last
            else f"iterations: none, this process has none left to run ({self.schedule.span})",
            f"recording: {' and '.join(self.activities)}"
            + (f"; switched on: {', '.join(on)}" if on else ""),
            f"traces: {self.run_folder}",
        ]
        if windows and self.expected:
            lines.insert(-1, f"each trace: {self.expected}")
        if windows and windows[0].warmup == 0:
            lines.append(
                "the first recorded iteration has no warm-up, so it will hold the profiler's own "
                "start-up cost"
            )
        if self.restarts:
            before = f"the run before is {self.follows}"
            if self.follows is None:
                before = "no earlier run of this job is in this folder"
            lines.append(f"restart {self.restarts} of this job: {before}")
        if self.unfinished:
            lines.append(
                f"earlier runs left {wording.counted(len(self.unfinished), 'unfinished trace')}, "
                f"such as {self.unfinished[0]}: torch-trace recover saves the events in them"
            )
        return "\n".join([*lines, *_left_out(self.config, self.schedule)])

    def as_json(self) -> dict[str, Any]:
        """The plan's entry in run.json; of an endless schedule the first hundred windows."""
        return {
            "restarts": self.restarts,
            "follows": self.follows.name if self.follows else None,
            "ranks": list(self.ranks),
            "windows": [
                {"first": w.first, "last": w.last, "warmup": w.warmup}
                for w in islice(self.schedule, 100)
            ],
            "first_iteration": self.schedule.span.first,
            "last_iteration": None
            if self.schedule.span.last == NO_LAST
            else self.schedule.span.last,
            "memory": [
                name
                for name in ("memory_snapshot", "memory_timeline", "on_oom")
                if getattr(self.config, name)
            ],
        }


def check(config: TorchProfileConfig, args: Any, loop: TrainingLoop = MEGATRONS_OWN) -> None:
    """Refuse what cannot work in any run with these arguments.

    Args:
        config: the user's wishes.
        args: Megatron's parsed, not yet validated arguments.
        loop: what is followed.

    Raises:
        UsageError: one sentence for the user.
    """
    if getattr(args, "profile", False):
        raise UsageError(
            f"{flag_of('enabled')} and --profile: two profilers cannot share the GPU's event "
            "interface; drop --profile (nsys, --use-pytorch-profiler) or "
            f"{flag_of('enabled')}."
        )
    needed_flags.check(config)
    watch_flags.check(config, topology.layout_from_arguments(args))
    for name, least in _LEAST.items():
        value = getattr(config, name)
        if value is not None and value < least:
            raise UsageError(f"{flag_of(name)} {value}: must be {least} or more.")
    schedule.check(config)
    ranks.check(config.ranks, topology.layout_from_arguments(args))
    if config.spans_depth is not None and "modules" not in config.wanted_spans:
        raise UsageError(
            f"{flag_of('spans_depth')} {config.spans_depth}: no spans of modules are asked for; "
            f"add {flag_of('spans')} modules."
        )
    if config.stacks and not config.with_stack:
        raise UsageError(
            f"{flag_of('stacks')}: there are no stacks to write without "
            f"{flag_of('with_stack')}; add that flag."
        )
    for name in ("with_flops", "key_averages", "execution_trace"):
        if config.no_operators and getattr(config, name):
            raise UsageError(
                f"{flag_of(name)} needs operators, and {flag_of('no_operators')} (which "
                f"{flag_of('preset')} light switches on) records none; drop one of the two."
            )
    if getattr(args, "train_iters", None):
        why = loop.why_last or training_length.flag(args)
        schedule.make(config, Span(1, args.train_iters), why_last=why)
    root = run_folder.root_of(config, args)
    # Of the other ranks' folders, which may be their nodes' own, `agree` hears.
    problem = run_folder.why_not_beside(root) if environment_rank() == 0 else None
    if problem:
        raise run_folder.not_writable(root, "rank 0", problem)


def agree(config: TorchProfileConfig, args: Any, loop: TrainingLoop = MEGATRONS_OWN) -> CapturePlan:
    """Decide, on all ranks together. Collective: call it on every rank.

    Args:
        config: `check` has accepted it.
        args: Megatron's validated arguments, after the checkpoint was loaded.
        loop: what is followed.

    Raises:
        UsageError: on every rank, with the same sentence, whichever rank found the mistake.
    """
    members = topology.discover(loop.coordinates, loop.sizes)
    chosen = ranks.resolve(config.ranks, members.layout, members.members)
    windows = schedule_of(config, args, loop)
    root = run_folder.root_of(config, args)
    folder = topology.from_rank_0(run_folder.make(root) if members.rank == 0 else None)
    if isinstance(folder, UsageError):
        raise folder
    assert folder is not None
    unfinished = run_folder.unfinished_traces(root, folder) if members.rank == 0 else ()
    restarts = slurm.restarts(os.environ)
    first = next(iter(windows), None)
    length = first.last - first.first + 1 if first else 0
    plan = CapturePlan(
        config,
        members,
        chosen,
        windows,
        folder,
        unfinished,
        estimate(config, args, length),
        restarts,
        slurm.run_before(folder) if restarts and members.rank == 0 else None,
    )
    # A request may ask any rank, and any rank may hang.
    writes = plan.records_here or config.trigger or config.on_hang
    problems = topology.gather(run_folder.why_not_writable(folder) if writes else None)
    for member, problem in zip(members.members, problems, strict=True):
        if problem:
            raise run_folder.not_writable(root, f"rank {member.rank} on {member.host}", problem)
    return plan


def schedule_of(
    config: TorchProfileConfig, args: Any, loop: TrainingLoop = MEGATRONS_OWN
) -> Schedule:
    """The windows of a run that begins where `args` say."""
    first = getattr(args, "iteration", 0) + 1
    last, why = args.train_iters, loop.why_last or training_length.flag(args)
    interval = getattr(args, "exit_interval", None)
    if interval and -(-first // interval) * interval < last:
        last, why = -(-first // interval) * interval, f"--exit-interval {interval}"
    if first > 1:
        # The script that was right once is started again, maybe by SLURM: what it has recorded
        # before, or has no room left for, must not end the rest of its training.
        return Schedule(config, Span(first, last))
    return schedule.make(config, Span(first, last), why_last=why)


def _left_out(config: TorchProfileConfig, windows: Schedule) -> Iterator[str]:
    """What a resumed run was asked for and cannot do, one fact a line."""
    span, ranges = windows.span, schedule.parse_iterations(config.iterations or [])
    behind = [(a, b) for a, b in ranges if a < span.first]
    beyond = [(a, b) for a, b in ranges if a >= span.first and b > span.last]
    for out, where in (
        (behind, "before the first iteration of this process"),
        (beyond, f"beyond {span.last}, the last iteration of this process,"),
    ):
        if out:
            shown = ", ".join(f"{a}-{b}" if a < b else str(a) for a, b in out)
            what = wording.iterations(shown)
            yield (
                f"{what} lies {where} and is left out"
                if shown.isdecimal()
                else f"{what} lie {where} and are left out"
            )
    fitting = sum(1 for _ in islice(windows, config.repeat))
    if not ranges and fitting < config.repeat:
        left = config.repeat - fitting
        verbs = "does not fit and is" if left == 1 else "do not fit and are"
        yield f"{left} of {wording.counted(config.repeat, 'window')} {verbs} left out"
