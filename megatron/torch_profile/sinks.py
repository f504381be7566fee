# SPDX-License-Identifier: Apache-2.0
"""Where numbers go: the W&B run, TensorBoard, `metrics.jsonl`. Each may fail without the others."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from megatron.torch_profile.log import logger
from megatron.torch_trace import layout

METRICS_FILE = layout.METRICS_FILE


class Sink(Protocol):
    """Takes numbers of one iteration."""

    name: str

    @property
    def here(self) -> bool:
        """Whether this process has it."""

    def write(self, iteration: int, values: Mapping[str, float]) -> None:
        """Take them; may raise whatever it likes."""


class Wandb:
    """The W&B run that this process has, whoever made it; Megatron's is the last rank's.

    Args:
        writer: returns the `wandb` module or a run, None on a rank without one.
    """

    name = "W&B"

    def __init__(self, writer: Callable[[], Any]) -> None:
        self._writer = writer

    @property
    def here(self) -> bool:
        """Whether this process has a run."""
        return self._writer() is not None

    def write(self, iteration: int, values: Mapping[str, float]) -> None:
        """Log at the global iteration, which is the run's step axis in Megatron too."""
        writer = self._writer()
        if writer is not None:
            writer.log(dict(values), step=iteration)


class TensorBoard:
    """Megatron's SummaryWriter, on the rank that has it.

    Args:
        writer: returns it, or None.
    """

    name = "TensorBoard"

    def __init__(self, writer: Callable[[], Any]) -> None:
        self._writer = writer

    @property
    def here(self) -> bool:
        """Whether this process has one."""
        return self._writer() is not None

    def write(self, iteration: int, values: Mapping[str, float]) -> None:
        """One scalar a key; the event file holds them as float32."""
        writer = self._writer()
        if writer is not None:
            for key, value in values.items():
                writer.add_scalar(key, value, iteration)


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


class Sinks:
    """All sinks of this process; one that fails is named once and not asked again."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = list(sinks)

    @property
    def here(self) -> bool:
        """Whether anybody here wants numbers."""
        return any(sink.here for sink in self._sinks)

    def write(self, iteration: int, values: Mapping[str, float]) -> None:
        """Hand the finite ones of the values to every sink; nothing to say is not said."""
        finite = {key: value for key, value in values.items() if math.isfinite(value)}
        if not finite:
            return
        for sink in list(self._sinks):
            try:
                sink.write(iteration, finite)
            except Exception as error:
                self._sinks.remove(sink)
                logger.warning(
                    "no more metrics to %s: %s: %s", sink.name, type(error).__name__, error
                )
