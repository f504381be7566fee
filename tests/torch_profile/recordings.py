# SPDX-License-Identifier: Apache-2.0
"""A training loop of three lines under a recorder, and its traces read back."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from trace_builder import read

from megatron.torch_profile.config import TorchProfileConfig
from megatron.torch_profile.export.endings import Ending
from megatron.torch_profile.plan.capture_plan import CapturePlan
from megatron.torch_profile.plan.ranks import Layout
from megatron.torch_profile.plan.schedule import Schedule, Span
from megatron.torch_profile.plan.topology import CPU, Member, Topology
from megatron.torch_profile.record import window_end
from megatron.torch_profile.record.recorder import Recorder
from megatron.torch_profile.record.signals import SIGNALS
from megatron.torch_profile.record.stop_decision import Decision


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Recorders take over signals; a test that fails half-way must not leave them so."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def no_collections() -> Iterator[None]:
    """One that happens in one of two recordings would be a difference."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def training_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch's profiler cannot be stopped in a thread, and a forked child writes."""
    forks = Decision(Ending.FORK, "the test wants it")
    monkeypatch.setattr(window_end, "decide", lambda *_: forks)


def make(
    folder: Path, *, last: int = 20, model: Any = None, device: str = CPU, **flags: Any
) -> Recorder:
    config = TorchProfileConfig(enabled=True, **flags)
    topology = Topology(0, Layout(1, {}), [Member(0, "node0", 1, 0, device)])
    plan = CapturePlan(config, topology, (0,), Schedule(config, Span(1, last)), folder)
    return Recorder(plan, model or [torch.nn.Linear(4, 4)], {"rank": 0})


def train(recorder: Recorder, iterations: Iterator[int] | range, model: Any = None) -> None:
    for iteration in iterations:
        recorder.begin_step(iteration)
        with torch.profiler.record_function(f"work of {iteration}"):
            (model or torch.nn.Linear(4, 4))(torch.ones(2, 4))


def end(recorder: Recorder) -> None:
    recorder.close()
    recorder.exporter.wait()


def spans(path: Path, *prefixes: str) -> list[str]:
    events = [e for e in read(path)["traceEvents"] if e.get("cat") == "user_annotation"]
    events.sort(key=lambda e: float(e["ts"]))
    return [e["name"] for e in events if e["name"].startswith(prefixes)]
