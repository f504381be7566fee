# SPDX-License-Identifier: Apache-2.0
"""What the traces of a window say, brought to W&B, TensorBoard and `metrics.jsonl`.

Only the rank that has a sink does this, profiled or not, and no rank waits for it: a program
beside training (`window_summary.py`) waits for the traces and analyses them, one window at a time.
Its result is picked up when Megatron logs, or, with a bound, when training has ended. At a log it
is written before the all-gathers, after which rank 0 writes its line: so no two ranks append to
`metrics.jsonl` at once, which NFS would not survive.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from megatron.torch_profile.exits import at_exit, not_at_exit
from megatron.torch_profile.export.writers import Program
from megatron.torch_profile.followers import followers
from megatron.torch_profile.guard import Guard
from megatron.torch_profile.log import Slug, say, warn
from megatron.torch_profile.plan.capture_plan import CapturePlan
from megatron.torch_profile.plan.schedule import Window
from megatron.torch_profile.plan.topology import CPU
from megatron.torch_profile.publish.sinks import (
    METRICS_FILE,
    JsonLines,
    Sink,
    Sinks,
    TensorBoard,
    Wandb,
    megatrons,
)
from megatron.torch_profile.publish.wandb_artifacts import TraceArtifacts
from megatron.torch_profile.publish.window_summary import read
from megatron.torch_trace.wording import iterations, seconds

_PROGRAM = "megatron.torch_profile.publish.window_summary"
_POLL_SECONDS = 0.1
_PROGRESS_SECONDS = 10.0
_BRIEF_SECONDS = 15.0
"""How long an end waits that may come from a scheduler, which sends SIGKILL soon after."""


class WindowResults:
    """Follows the windows of one training on the rank that tells of them.

    Args:
        capture: what is recorded, on whichever ranks.
        outputs: who is told.
        analyse: whether windows are analysed.
        artifacts: who takes the traces themselves, if anybody.
    """

    def __init__(
        self,
        capture: CapturePlan,
        outputs: Sinks,
        *,
        analyse: bool,
        artifacts: TraceArtifacts | None = None,
    ) -> None:
        self._capture = capture
        self._pid = os.getpid()
        self._sinks = outputs
        self._analyse = analyse
        self._artifacts = artifacts
        self._windows = iter(capture.schedule)
        self._next: Window | None = next(self._windows, None)
        self._requested: list[tuple[Window, tuple[int, ...]]] = []
        self._over: deque[tuple[Window, tuple[int, ...]]] = deque()
        self._running: tuple[Window, Program] | None = None
        self._iteration = 0
        self._guard = Guard(
            Slug.SUMMARY_FAILED, "training goes on without summaries of windows", self.abandon
        )
        self._bound = float(capture.config.exit_timeout)

    def add(self, window: Window, ranks: tuple[int, ...]) -> None:
        """Follow a window that is no part of the plan, too.

        Args:
            window: its iterations.
            ranks: who records it.
        """
        self._requested.append((window, ranks))

    def end_iteration(self, iteration: int, *, logs: bool) -> None:
        """An iteration has ended.

        Args:
            iteration: which.
            logs: whether Megatron is about to log it.
        """
        self._iteration = iteration
        self._guard(self._follow, logs)

    def finish(self) -> None:
        """Training has ended well, or its W&B run is about to: wait for what is under way."""
        not_at_exit(self.finish)
        if os.getpid() != self._pid:  # a fork of training that ends: what runs is not its child
            return
        # Training has ended within a window.
        begun = [one for one in self._requested if one[0].first <= self._iteration]
        if self._next is not None and self._next.first <= self._iteration:
            begun.append((self._next, self._capture.ranks))
        self._over.extend(sorted(begun, key=lambda one: one[0].first))
        self._next, self._requested = None, []
        self._guard(self._wait)
        self.abandon()

    def hurry(self) -> None:
        """Training ends before its last iteration, maybe because the job must."""
        self._bound = min(self._bound, _BRIEF_SECONDS)

    def abandon(self) -> None:
        """Training has ended otherwise: nobody waits for ranks that may be gone."""
        if followers.results is self:
            followers.results = None
        not_at_exit(self.finish)
        self._guard.failed = True
        if self._running is not None and os.getpid() == self._pid:
            self._running[1].kill()
            self._running = None

    def _follow(self, logs: bool) -> None:
        while self._next is not None and self._next.last <= self._iteration:
            self._over.append((self._next, self._capture.ranks))
            self._next = next(self._windows, None)
        for one in [one for one in self._requested if one[0].last <= self._iteration]:
            self._requested.remove(one)
            self._over.append(one)
        if logs:
            self._pick_up()
        self._launch()

    def _launch(self) -> None:
        if self._running is not None or not self._over:
            return
        (window, ranks), config = self._over.popleft(), self._capture.config
        partials = config.partials == "always" or (
            config.partials == "auto" and _records_gpus(self._capture)
        )
        command = [
            *(sys.executable, "-m", _PROGRAM, str(self._capture.window_folder(window))),
            *("--wait", str(config.exit_timeout)),
            *("--ranks", *map(str, ranks)),
            *(["--elsewhere"] if config.scratch_dir else []),
            *(["--partials"] if partials else []),
            *(["--analyse"] if self._analyse else []),
        ]
        self._running = (window, Program(command))

    def _pick_up(self) -> None:
        if self._artifacts is not None:
            self._artifacts.pick_up()
        if self._running is None:
            return
        window, program = self._running
        answer = program.poll()
        if answer is None:
            return
        self._running = None
        traces = [Path(path) for path in answer.get("traces", ())]
        why_not = (
            answer.get("died")
            or answer.get("error")
            or ("" if traces else "no trace of these iterations was written")
        )
        if why_not:
            warn(Slug.SUMMARY_FAILED, "no summary of %s: %s", iterations(window), why_not)
        elif self._analyse:
            summary = read(self._capture.window_folder(window))
            say(Slug.SUMMARY, "%s", summary.line())
            self._sinks.write_window(self._iteration, summary)
        if self._artifacts is not None and traces:
            self._artifacts.begin(self._capture.window_folder(window).name, traces)

    @property
    def _busy(self) -> bool:
        making = self._artifacts is not None and self._artifacts.busy
        return self._running is not None or bool(self._over) or making

    def _wait(self) -> None:
        began = spoke = time.monotonic()
        while self._busy and time.monotonic() - began < self._bound:
            self._launch()
            self._pick_up()
            if time.monotonic() - spoke >= _PROGRESS_SECONDS:
                spoke = time.monotonic()
                say(
                    Slug.SUMMARY_WAITS,
                    "training has ended and waits up to %s for the %s: %s so far",
                    seconds(self._bound),
                    self._awaited,
                    seconds(round(spoke - began)),
                )
            time.sleep(_POLL_SECONDS if self._busy else 0)
        if self._running is not None:
            warn(
                Slug.SUMMARY_GIVEN_UP,
                "there is no %s after %s; %s %s",
                self._awaited,
                seconds(self._bound),
                "make one with torch-trace analyze" if self._analyse else "the traces are in",
                self._capture.window_folder(self._running[0]),
            )

    @property
    def _awaited(self) -> str:
        thing = "summary" if self._analyse else "W&B artifact"
        return f"{thing} of {iterations(self._running[0])}" if self._running else "W&B artifact"


@contextmanager
def training(capture: CapturePlan, args: Any) -> Iterator[None]:
    """Around one call of `train`: follow its windows if this is the rank that tells of them.

    Args:
        capture: what is recorded.
        args: Megatron's arguments.
    """
    if followers.results is not None:  # training starts again in the same process
        followers.results.abandon()
        followers.results = None
    try:
        results = followers.results = _make(capture, args)
    except Exception as error:
        warn(
            Slug.SUMMARY_FAILED,
            "training goes on without summaries of windows: %s: %s",
            type(error).__name__,
            error,
        )
        results = None
    if results is None:
        yield
        return
    at_exit(results.finish)
    try:
        yield
    except SystemExit:  # how Megatron ends at an exit interval, and after a signal
        results.hurry()
        raise
    except BaseException:
        results.abandon()
        raise


def _make(capture: CapturePlan, args: Any) -> WindowResults | None:
    wandb, tensorboard = Wandb(megatrons("wandb")), TensorBoard(megatrons("tensorboard"))
    config = capture.config
    here = wandb.here or tensorboard.here
    # Somebody's run on another rank shows in the arguments; without one rank 0 tells.
    elsewhere = getattr(args, "wandb_project", "") or getattr(args, "tensorboard_dir", None)
    alone = capture.topology.rank == 0 and not elsewhere
    artifacts = (
        TraceArtifacts(megatrons("wandb")) if config.wandb_artifacts and wandb.here else None
    )
    analyse = config.summary == "always" and (here or alone)
    if config.summary == "auto" and here:
        analyse = _records_gpus(capture)
        if not analyse:
            say(
                Slug.SUMMARY_OFF,
                "windows get no summary, because no GPU is recorded; --torch-profile-summary "
                "always "
                "makes one",
            )
    if not analyse and artifacts is None:
        return None
    outputs: list[Sink] = [wandb, tensorboard, JsonLines(capture.run_folder / METRICS_FILE)]
    return WindowResults(capture, Sinks(outputs), analyse=analyse, artifacts=artifacts)


def _records_gpus(capture: CapturePlan) -> bool:
    members = capture.topology.members
    return "cuda" in capture.config.activities and any(
        members[rank].device != CPU for rank in capture.ranks
    )
