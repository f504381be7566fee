# SPDX-License-Identifier: Apache-2.0
"""A plan of two windows, and stand-ins for the program, the W&B run and TensorBoard's writer."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from logging_megatron import Writer

from megatron.torch_profile.config import TorchProfileConfig
from megatron.torch_profile.plan.capture_plan import CapturePlan
from megatron.torch_profile.plan.ranks import Layout
from megatron.torch_profile.plan.schedule import Schedule, Span
from megatron.torch_profile.plan.topology import Member, Topology
from megatron.torch_profile.publish.window_summary import WindowSummary


class Program:
    """Stands in for the program beside training; ends when a test says so."""

    started: list[Program]

    def __init__(self, command: list[str]) -> None:
        self.command = command
        self.answer: dict[str, Any] | None = None
        self.killed = False
        Program.started.append(self)

    @property
    def folder(self) -> Path:
        return Path(self.command[3])

    def end(self, *missing: int, **answer: Any) -> None:
        """Write the summary of iterations that the folder's name tells, and end."""
        iterations = [int(part) for part in self.folder.name.split("-")[1:]]
        summary = WindowSummary(
            first=iterations[0],
            last=iterations[-1],
            scalars={"profile/idle_pct": 12.5},
            ranks=[[0, None, None, None, None, 12.5, None]],
            missing_ranks=list(missing),
            findings=[["high", "code", "A fact.", "An advice."]],
        )
        (self.folder / "artifacts").mkdir(parents=True, exist_ok=True)
        (self.folder / "artifacts" / "summary.json").write_text(json.dumps(asdict(summary)))
        trace = self.folder / "rank-0.pt.trace.json"
        trace.write_text("{}")
        self.answer = {"traces": [str(trace)], "summary": True} | answer

    def poll(self) -> dict[str, Any] | None:
        return self.answer

    def kill(self) -> None:
        self.killed = True


class Run:
    """A W&B run, or the module, which has it as `run`."""

    id = "abc"

    def __init__(self) -> None:
        self.run = self
        self.logged: list[tuple[int, dict[str, Any]]] = []
        self.axes: dict[str, str | None] = {}
        self.artifacts: list[tuple[Any, list[str]]] = []

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.axes[name] = step_metric

    def log(self, values: dict[str, Any], step: int) -> None:
        self.logged.append((step, values))

    def log_artifact(self, artifact: Any, aliases: list[str]) -> None:
        self.artifacts.append((artifact, aliases))


class TextWriter(Writer):
    """A SummaryWriter."""

    text = ""

    def add_text(self, key: str, text: str, iteration: int) -> None:
        self.text = text

    def flush(self) -> None:
        pass


def capture(folder: Path, *, rank: int = 1, device: str = "H100", **flags: Any) -> CapturePlan:
    """Rank 0 of two is recorded in iterations 3 and 4, and again in 6 and 7."""
    config = TorchProfileConfig(
        enabled=True, iterations=["3-4", "6-7"], **{"exit_timeout": 5, **flags}
    )
    members = [Member(number, "node", 1, 0, device) for number in range(2)]
    topology = Topology(rank, Layout(2, {}), members)
    return CapturePlan(config, topology, (0,), Schedule(config, Span(1, 10)), folder)
