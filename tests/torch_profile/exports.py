# SPDX-License-Identifier: Apache-2.0
"""Exports of a small trace: what the tests of exports in flight are built from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from trace_builder import header, kernel, launch, read, text, write

from megatron.torch_profile.export.background import Exporter
from megatron.torch_profile.export.endings import Ending
from megatron.torch_profile.export.trace_export import Export
from megatron.torch_profile.plan.schedule import Window
from megatron.torch_trace.format.file_names import TraceName

WINDOW = Window(3, 4, 1)
TARGET = "iter-0000003-0000004/rank-0.pt.trace.json.gz"
WITHOUT_THREAD = (Ending.FORK, Ending.TRAINING)
LAUNCH, KERNEL = launch(0, 1_000, 1), kernel("gemm", 2_000, 3_000, 1)


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    yield
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def profiled() -> Any:
    """A stopped profiler with a trace that is not saved yet."""
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    profiler.prepare_trace()
    profiler.start_trace()
    with torch.profiler.record_function("ProfilerStep#3"):
        torch.ones(4).sum()
    profiler.stop_trace()
    return profiler


def export_to(folder: Path, **options: Any) -> Export:
    name = TraceName(0, 1, options.pop("compression", "gzip"))
    return Export(0, WINDOW, (3, 4), folder / "iter-0000003-0000004", name, **options)


def hand_over(exporter: Exporter, export: Export, ending: Ending = Ending.FORK) -> None:
    exporter.hand_over(profiled(), export, ending, stop_seconds=0.0, expected_mb=0.0, writers=1)


def steps(path: Path) -> int:
    return sum(event.get("name") == "ProfilerStep#3" for event in read(path)["traceEvents"])


def raw_trace(path: Path, *events: str) -> Path:
    return write(path, text(*events, header=header()))
