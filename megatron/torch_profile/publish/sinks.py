# SPDX-License-Identifier: Apache-2.0
"""Where numbers go: the W&B run, TensorBoard, `metrics.jsonl`. Each may fail without the others."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from megatron.torch_profile.guard import Guard
from megatron.torch_profile.log import Slug
from megatron.torch_profile.publish.wandb_charts import charts
from megatron.torch_profile.publish.window_summary import WindowSummary
from megatron.torch_trace.format import file_names

METRICS_FILE = file_names.METRICS_FILE
WINDOW_AXIS = "profile/iteration"
"""In W&B: the last iteration of a window."""


class Sink(Protocol):
    """Takes numbers of one iteration, and what is said of one window."""

    name: str

    @property
    def here(self) -> bool:
        """Whether this process has it."""

    def write(self, iteration: int, values: Mapping[str, float]) -> None:
        """Take them; may raise whatever it likes."""

    def write_window(self, iteration: int, summary: WindowSummary) -> None:
        """Take it, at an iteration after the window; may raise whatever it likes."""


def megatrons(writer: str) -> Callable[[], Any]:
    """A function that returns what training has for `wandb` or `tensorboard` on this rank.

    That is Megatron's own; in a loop without Megatron it is the W&B run of the process.
    """

    def ask() -> Any:
        # Whoever trains with Megatron has it imported; to import it for a question takes seconds.
        global_vars = sys.modules.get("megatron.training.global_vars")
        if global_vars is not None:
            return getattr(global_vars, f"get_{writer}_writer")()
        module = sys.modules.get("wandb") if writer == "wandb" else None
        return module if getattr(module, "run", None) is not None else None

    return ask


class _MegatronsWriter:
    """What Megatron itself made to log to, on the rank that has it.

    Args:
        writer: returns it, or None.
    """

    def __init__(self, writer: Callable[[], Any]) -> None:
        self._writer = writer

    @property
    def here(self) -> bool:
        """Whether this process has one."""
        return self._writer() is not None


class Wandb(_MegatronsWriter):
    """The W&B run that this process has, whoever made it: the `wandb` module, or a run."""

    name = "W&B"

    @property
    def here(self) -> bool:
        """Whether this process has a run; Megatron keeps the module after it has ended its own."""
        writer = self._writer()
        return getattr(writer, "run", writer) is not None

    def write(self, iteration: int, values: Mapping[str, float]) -> None:
        """Log at the global iteration, which is the run's step axis in Megatron too."""
        if self.here:
            self._writer().log(dict(values), step=iteration)

    def write_window(self, iteration: int, summary: WindowSummary) -> None:
        """W&B refuses steps that go back, so what belongs to a window has an axis of its own."""
        if not self.here:
            return
        writer = self._writer()
        writer.define_metric(WINDOW_AXIS)
        writer.define_metric("profile/*", step_metric=WINDOW_AXIS)
        values = {WINDOW_AXIS: summary.last, **summary.scalars, **charts(summary)}
        writer.log(values, step=iteration)


class TensorBoard(_MegatronsWriter):
    """Megatron's SummaryWriter."""

    name = "TensorBoard"

    def write(self, iteration: int, values: Mapping[str, float]) -> None:
        """One scalar a key; the event file holds them as float32."""
        writer = self._writer()
        if writer is not None:
            for key, value in values.items():
                writer.add_scalar(key, value, iteration)

    def write_window(self, iteration: int, summary: WindowSummary) -> None:
        """Scalars at the window's last iteration, findings as text."""
        writer = self._writer()
        if writer is None:
            return
        self.write(summary.last, summary.scalars)
        findings = [
            f"- **{severity}** {title} {advice}" for severity, _, title, advice in summary.findings
        ]
        if findings:
            writer.add_text("profile/findings", "\n".join(findings), summary.last)
        writer.flush()  # it may be the last that training says


class JsonLines:
    """A line a log, appended and closed at once: a killed run keeps what it had.

    Args:
        path: the file.
    """

    name = METRICS_FILE
    here = True

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, iteration: int, values: Mapping[str, float]) -> None:
        """`{"iteration": 5, "timers/forward-backward-time": 0.0123, ...}`."""
        with self._path.open("a") as file:
            file.write(json.dumps({"iteration": iteration, **values}) + "\n")

    def write_window(self, iteration: int, summary: WindowSummary) -> None:
        """At the window's last iteration, so lines are not in order."""
        self.write(summary.last, summary.scalars)


class Sinks:
    """All sinks of this process; one that fails is named once and not asked again."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = [
            (sink, Guard(Slug.METRICS_FAILED, f"training goes on without metrics in {sink.name}"))
            for sink in sinks
        ]

    @property
    def here(self) -> bool:
        """Whether anybody here wants numbers."""
        return any(sink.here for sink, guard in self._sinks if not guard.failed)

    def write(self, iteration: int, values: Mapping[str, float]) -> None:
        """Hand the finite ones of the values to every sink; nothing to say is not said."""
        finite = {key: value for key, value in values.items() if math.isfinite(value)}
        if not finite:
            return
        for sink, guard in self._sinks:
            guard(sink.write, iteration, finite)

    def write_window(self, iteration: int, summary: WindowSummary) -> None:
        """Hand a window's summary to every sink, at an iteration after it."""
        for sink, guard in self._sinks:
            guard(sink.write_window, iteration, summary)
