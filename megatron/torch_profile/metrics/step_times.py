# SPDX-License-Identifier: Apache-2.0
"""Where the wall time of an iteration goes, by the host's clock and without a synchronisation.

An iteration lasts from the end of the one before to its own end, both where Megatron turns to its
log (`training_log`), less evaluation and checkpoints. One iteration's end may be early by what
the GPU still has to do; the sum over an interval is right, because Megatron waits for the GPU
when it logs. Iterations that the profiler slowed are counted, and left out of every average.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from megatron.torch_profile.metrics.across_ranks import largest
from megatron.torch_profile.plan.schedule import Window

FIELDS = ("seconds", "data_seconds")
"""What `StepClock.row` gives."""


class ProfiledIterations:
    """Which iterations the profiler slows: warm-up, recording, and the one in which it stops.

    Args:
        windows: ascending, maybe endless.
    """

    def __init__(self, windows: Iterable[Window]) -> None:
        self._windows = iter(windows)
        self._window = next(self._windows, None)
        self._requested: list[Window] = []

    def add(self, window: Window) -> None:
        """A window that is no part of the plan."""
        self._requested.append(window)

    def __contains__(self, iteration: int) -> bool:
        """Ask for ascending iterations."""
        while self._window and self._window.last + 1 < iteration:
            self._window = next(self._windows, None)
        self._requested = [one for one in self._requested if one.last + 1 >= iteration]
        near = [self._window, *self._requested] if self._window else self._requested
        return any(one.first - one.warmup <= iteration <= one.last + 1 for one in near)


class StepClock:
    """Adds up one rank's iterations until it is reset.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._since: float | None = None
        self._not_mine = 0.0
        self._data = math.nan
        self.reset()

    def reset(self) -> None:
        """Begin an interval."""
        self._seconds = 0.0
        self._data_seconds = math.nan
        self.iterations = 0
        self.profiled = 0

    def begin_step(self) -> None:
        """`train_step` is about to run; only the first of a process needs to say so."""
        if self._since is None:
            self._since = self.clock()

    def add_data(self, seconds: float) -> None:
        """This iteration waited for its data."""
        self._data = seconds + (0.0 if math.isnan(self._data) else self._data)

    def add_pause(self, seconds: float) -> None:
        """Evaluation or a checkpoint ran."""
        self._not_mine += seconds

    def end_step(self, *, profiled: bool) -> None:
        """The iteration has ended."""
        now = self.clock()
        seconds = now - (now if self._since is None else self._since) - self._not_mine
        if profiled:
            self.profiled += 1
        else:
            self.iterations += 1
            self._seconds += seconds
            if not math.isnan(self._data):
                before = 0.0 if math.isnan(self._data_seconds) else self._data_seconds
                self._data_seconds = before + self._data
        self._since, self._not_mine, self._data = now, 0.0, math.nan

    def row(self) -> list[float]:
        """`FIELDS`: seconds of all counted iterations; NaN for data where this rank reads none."""
        return [self._seconds, self._data_seconds]


@dataclass(frozen=True, slots=True)
class StepSplit:
    """The interval's iterations, the same on every rank.

    Args:
        iterations: counted iterations.
        profiled: iterations left out because a profiler ran.
        seconds: wall time of the counted iterations, of the slowest rank.
        data_seconds: waiting for data, of the rank that waited longest: the others wait for it.
        samples: sequences in the counted iterations, over all data-parallel ranks.
        sequence_length: tokens of a sequence.
        flops: model FLOPs of one iteration by Megatron's formula; None if unknown.
        gpus: world size.
        peak_tflops: dense bf16 peak of one GPU; None if unknown.
    """

    iterations: int
    profiled: int
    seconds: float
    data_seconds: float
    samples: int
    sequence_length: int
    flops: float | None
    gpus: int
    peak_tflops: float | None

    def values(self) -> dict[str, float]:
        """Keys and values; times in milliseconds per iteration, shares in per cent.

        step = model + data; tokens/s = samples/s x sequence length;
        TFLOP/s/GPU = FLOPs / (step time x GPUs x 10^12); MFU = that / dense bf16 peak.
        """
        values: dict[str, float] = {"train/profiled_iterations": self.profiled}
        if not self.iterations or not self.seconds > 0.0:
            return values
        step = self.seconds / self.iterations
        values["train/step_time_ms"] = step * 1e3
        if not math.isnan(self.data_seconds):
            data = self.data_seconds / self.iterations
            values["train/data_time_ms"] = data * 1e3
            values["train/model_time_ms"] = (step - data) * 1e3
            values["train/data_time_pct"] = 100.0 * data / step
        samples = self.samples / self.seconds
        values["train/samples_per_s"] = samples
        values["train/tokens_per_s"] = samples * self.sequence_length
        if self.flops:
            tflops = self.flops / (step * self.gpus * 1e12)
            values["train/tflops_per_gpu"] = tflops
            if self.peak_tflops:
                values["train/mfu_pct"] = 100.0 * tflops / self.peak_tflops
        return values


def line(values: dict[str, float]) -> str:
    """What is appended to Megatron's line about an iteration, in its style; maybe nothing."""
    parts = []
    if "train/data_time_ms" in values:
        parts.append(
            f" data time (ms): {values['train/data_time_ms']:.1f}"
            f" ({values['train/data_time_pct']:.1f} %) |"
            f" model time (ms): {values['train/model_time_ms']:.1f} |"
        )
    if "train/tokens_per_s" in values:
        parts.append(f" tokens/s: {values['train/tokens_per_s']:.0f} |")
    if values.get("train/profiled_iterations"):
        parts.append(f" profiled iterations: {values['train/profiled_iterations']:.0f} |")
    return "".join(parts)


def over_ranks(rows: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Seconds and data seconds of an interval from all ranks' `StepClock.row`."""
    return largest([row[0] for row in rows]), largest([row[1] for row in rows])
