# SPDX-License-Identifier: Apache-2.0
"""How long iterations take with the profiler and without, by the host's clock.

Nothing is synchronised for it: an iteration lasts from the start of one `train_step` to the start
of the next, and Megatron's own synchronisation in the optimizer keeps that honest.

    iteration   ... 8   9   10 | 11 warm-up | 12 recorded | 13 | 14  15  16 ...
                undisturbed                                 |    undisturbed
                                                            in it the profiler stops: left out

What came before is told with the trace itself. What comes after is known when the trace is on its
way already, so that goes into a file of its own, written by a thread: training waits for no disk.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from megatron.torch_profile.export.background import Exporter
from megatron.torch_profile.log import Slug, say, warn
from megatron.torch_profile.plan.capture_plan import CapturePlan
from megatron.torch_profile.plan.schedule import Window
from megatron.torch_profile.record import cupti
from megatron.torch_profile.record.open_window import OpenWindow
from megatron.torch_profile.record.other_profilers import OtherProfilers
from megatron.torch_trace import wording
from megatron.torch_trace.files.atomic import atomic_path
from megatron.torch_trace.format.undisturbed_iterations import (
    LEAST,
    METADATA_NAME,
    SUFFIX,
    UndisturbedIterations,
    slowdown_sentence,
)
from megatron.torch_trace.system.patience import joined

_MOST = 10
"""Iterations on each side of a window."""
_WRITE_SECONDS = 5.0
"""How long the end of training waits for a file system."""

_Lengths = list[tuple[int, int]]


@dataclass(slots=True)
class _Around:
    """A window that is over, and the iterations around it.

    Args:
        warm_up: in which the profiler ran and kept nothing.
        start_ns: how long the profiler's start held training before the first recorded one.
        following: the one after it, in which the profiler has stopped.
        busy: those after it during which its trace was still being written or analysed.
    """

    window: Window
    target: Path
    recorded: _Lengths
    before: _Lengths
    after: _Lengths = field(default_factory=list)
    busy: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_MOST))
    warm_up: _Lengths = field(default_factory=list)
    start_ns: int = 0
    following: _Lengths = field(default_factory=list)

    def chosen_after(self) -> _Lengths:
        """Those beside which a trace was written or analysed only where others are too few."""
        enough = len(self.before) + len(self.after) >= LEAST
        return self.after if enough else sorted([*self.busy, *self.after])[:_MOST]


class IterationTimes:
    """Times the iterations of one rank, in and out of windows.

    Args:
        plan: whose windows.
        others: tells whether another profiler runs.
        exporter: tells whether a trace is being written or analysed.
    """

    def __init__(self, plan: CapturePlan, others: OtherProfilers, exporter: Exporter) -> None:
        self._plan = plan
        self._others = others
        self._exporter = exporter
        self._now: tuple[int, int] | None = None
        self._is_first = True
        self._recent: deque[tuple[int, int]] = deque(maxlen=_MOST)
        self._recorded: _Lengths = []
        self._warm_up: _Lengths = []
        self._start_ns = 0
        self._around: _Around | None = None
        self._attached = self._was_busy = False
        self._thread: threading.Thread | None = None

    def begin_step(self, iteration: int, window: OpenWindow | None) -> None:
        """An iteration begins.

        Args:
            iteration: which.
            window: what was open in the one that ends with this call.
        """
        now = time.perf_counter_ns()
        self._end(now, window)
        self._now = (iteration, now)

    def end_step(self, window: OpenWindow | None) -> None:
        """An iteration has ended, and the next one has not begun.

        Args:
            window: what is open in it.
        """
        self._end(time.perf_counter_ns(), window)

    def _end(self, now: int, window: OpenWindow | None) -> None:
        ended, self._now = self._now, None
        was_busy, self._was_busy = self._was_busy, self._exporter.at_work
        if ended is None:
            return
        pair = (ended[0], now - ended[1])
        first, self._is_first = self._is_first, False
        if window is not None:
            (self._recorded if window.recorded else self._warm_up).append(pair)
        elif not (first or self._attached or self._others.running):
            self._add(
                pair, was_busy or self._was_busy
            )  # not the first one, which compiles and allocates

    def window_starts(self, iteration: int) -> None:
        """The profiler has just been started, for which training was held.

        The recorded iteration begins here, as `ProfilerStep` does in the trace.

        Args:
            iteration: the first recorded one.
        """
        now = time.perf_counter_ns()
        if self._now is not None:
            self._start_ns = now - self._now[1]
        self._now = (iteration, now)

    def pause(self, window: OpenWindow | None) -> None:
        """Evaluation or a checkpoint begins: of what it interrupts only a recorded one counts.

        Args:
            window: what is open, and ends here if this iteration was its last.
        """
        if self._now is not None:
            if window is not None and window.recorded:
                self._recorded.append((self._now[0], time.perf_counter_ns() - self._now[1]))
            self._now, self._is_first = None, False

    def window_opens(self) -> dict[str, list[list[int]]]:
        """A warm-up begins: what came after the window before this one is all there will be.

        Returns:
            The last undisturbed iterations so far, for the trace's metadata.
        """
        self._conclude()
        self._recorded, self._warm_up = [], []
        return {METADATA_NAME: [list(pair) for pair in self._recent]} if self._recent else {}

    def window_closed(self, window: Window) -> None:
        """A window has just closed; the profiler has stopped."""
        self._attached = cupti.stays_attached(self._plan.activities, os.environ)
        target = self._plan.window_folder(window) / self._plan.trace_name().artifact(SUFFIX)
        self._around = _Around(
            window,
            target,
            self._recorded,
            list(self._recent),
            warm_up=self._warm_up,
            start_ns=self._start_ns,
        )
        self._recorded = []

    def close(self) -> None:
        """Training has ended."""
        self._conclude()
        if self._thread is not None:
            joined(self._thread, _WRITE_SECONDS)

    def _add(self, pair: tuple[int, int], busy: bool) -> None:
        around = self._around
        if around is not None and not around.following:
            around.following.append(pair)
            return
        if not busy:
            self._recent.append(pair)
        if around is None:
            return
        (around.busy if busy else around.after).append(pair)
        if len(around.after) == _MOST:
            self._conclude()

    def _conclude(self) -> None:
        around, self._around = self._around, None
        if around is None:
            return
        after = around.chosen_after()
        undisturbed = UndisturbedIterations.of([*around.before, *after])
        rank = self._plan.topology.rank
        _say(rank, around, after, undisturbed)
        if not after or undisturbed.median_ns is None:
            return  # the trace itself tells what there is, or it is too little to tell
        text = json.dumps(
            {
                "schema": 1,
                "run": self._plan.run_folder.name,
                "rank": rank,
                "window": {"first": around.window.first, "last": around.window.last},
                "warm_up": around.warm_up,
                "start_ns": around.start_ns,
                "recorded": around.recorded,
                "following": around.following,
                "undisturbed": undisturbed.lengths,
            }
        )
        self._thread = threading.Thread(
            target=_write,
            args=(around.target, f"{text}\n", rank),
            name="torch-profile-iterations",
            daemon=True,
        )
        try:
            self._thread.start()
        except RuntimeError:  # the process ends already, and Python starts no thread any more
            self._thread = None
            _write(around.target, f"{text}\n", rank)


def _say(rank: int, around: _Around, after: _Lengths, undisturbed: UndisturbedIterations) -> None:
    if not around.recorded:
        return
    sentence = slowdown_sentence(_mean(around.recorded), undisturbed.median_ns, [undisturbed])
    sides = ""
    if len(around.before) >= LEAST and len(after) >= LEAST:
        # Did the window leave training slower?
        sides = (
            f" (mean {wording.duration(_mean(around.before))} before the window, "
            f"{wording.duration(_mean(after))} after it)"
        )
    say(
        Slug.ITERATION_TIMES,
        "rank %d, %s: %s%s",
        rank,
        wording.iterations(around.window),
        sentence[0].lower() + sentence[1:],
        sides,
    )


def _mean(lengths: _Lengths) -> float:
    return fmean(ns for _, ns in lengths)


def _write(target: Path, text: str, rank: int) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(target, replace=False) as unfinished:
            unfinished.write_text(text)
    except OSError as error:
        why = error.strerror or error
        warn(Slug.ITERATION_TIMES_FAILED, "rank %d: %s was not written: %s", rank, target, why)
