# SPDX-License-Identifier: Apache-2.0
"""A window in which CUDA graphs replay whole iterations says why it has no modules."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_builder import GEMM, TraceBuilder

from megatron import torch_trace
from megatron.torch_trace.report import sentences


def replays(trace: TraceBuilder, step: int, kernels: int = 4) -> None:
    """A step that launches everything at once, and an optimizer beside it."""
    now = 1000 * step
    trace.step(step, now, now + 1000)
    trace.call("cudaGraphLaunch", now + 10, now + 20, args={"correlation": step})
    for at in range(kernels):
        trace.gpu(GEMM, now + 100 * at + 30, now + 100 * at + 80, args={"correlation": step})
    trace.annotation("optimizer", now + 700, now + 900)
    trace.gpu("adam", now + 800, now + 900, launch=now + 750)


def notes(trace: TraceBuilder, folder: Path) -> list[str]:
    found = sentences.notes(torch_trace.analyze(trace.write(folder / "rank-0.json")))
    return [note for note in found if note.startswith("Modules")]


def test_the_note_names_the_window_that_would_tell(tmp_path: Path) -> None:
    trace = TraceBuilder()
    replays(trace, 6)
    replays(trace, 7)
    assert notes(trace, tmp_path) == [
        "Modules and micro-batches are unknown: CUDA graphs launched 8 kernels of rank 0, and no "
        "iteration of the window launched them one by one. A window that begins before the graphs "
        "are captured would tell the modules (--torch-profile-iterations 1-6)."
    ]


@pytest.mark.parametrize("span", ["forward micro-batch 0", "decoder: TransformerBlock"])
def test_a_window_that_tells_something_of_them_has_no_such_note(tmp_path: Path, span: str) -> None:
    trace = TraceBuilder()
    replays(trace, 6)
    trace.annotation(span, 6000, 6400)
    assert notes(trace, tmp_path) == []


def test_graphs_that_launch_little_explain_nothing(tmp_path: Path) -> None:
    trace = TraceBuilder()
    replays(trace, 6, kernels=1)
    assert notes(trace, tmp_path) == []
