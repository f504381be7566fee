# SPDX-License-Identifier: Apache-2.0
"""The monitor's numbers, brought to W&B, TensorBoard and `metrics.jsonl` when Megatron logs.

Rank 0 has them first and writes the file; the rank with a W&B run or TensorBoard reads them from
the store, in the monitor's thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from megatron.torch_profile.followers import followers
from megatron.torch_profile.plan.capture_plan import CapturePlan
from megatron.torch_profile.publish.sinks import (
    METRICS_FILE,
    JsonLines,
    Sink,
    Sinks,
    TensorBoard,
    Wandb,
    megatrons,
)

if TYPE_CHECKING:
    from megatron.torch_profile.monitor.iterations.monitor import Monitor


class MonitorLines:
    """Of one rank that has a sink.

    Args:
        monitor: of this rank.
        outputs: who is told.
    """

    def __init__(self, monitor: Monitor, outputs: Sinks) -> None:
        self._monitor = monitor
        self._outputs = outputs
        self._last = 0
        self._pid = os.getpid()

    def write(self, iteration: int) -> None:
        """Hand over what the monitor has by now.

        Args:
            iteration: the one that Megatron is about to log; W&B takes no earlier one.
        """
        self._last = iteration
        while self._monitor.lines:
            self._outputs.write(iteration, self._monitor.lines.popleft())

    def write_rest(self) -> None:
        """Training has ended: the numbers of its last interval. A fork that ends has none."""
        if os.getpid() == self._pid:
            self.write(self._last)


@contextmanager
def training(capture: CapturePlan) -> Iterator[None]:
    """Around one call of `train`, inside the monitor's own."""
    heartbeat = followers.heartbeat
    monitor = heartbeat.monitor if heartbeat is not None else None
    if monitor is None:
        yield
        return
    outputs: list[Sink] = [Wandb(megatrons("wandb")), TensorBoard(megatrons("tensorboard"))]
    here = any(sink.here for sink in outputs)
    if capture.topology.rank == 0:
        outputs.append(JsonLines(capture.run_folder / METRICS_FILE))
    elif here:
        monitor.wants_lines = True
    lines = MonitorLines(monitor, Sinks(outputs)) if here or capture.topology.rank == 0 else None
    followers.monitor_lines = lines
    try:
        yield
    finally:
        followers.monitor_lines = None
        if lines is not None and capture.topology.rank == 0 and heartbeat is not None:
            heartbeat.close()
            monitor.stop()
            lines.write_rest()
