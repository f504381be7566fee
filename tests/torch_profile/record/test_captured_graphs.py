# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs beside a window that ends: who stops the profiler, and what waits for whom."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from gates import Gate
from recordings import end, make, train
from recordings import signals as signals
from slow_stop import TRACE, needs_stop_in_a_thread, saves_wait_at
from written_files import files_below

from megatron.torch_profile.export.native_profiler import NativeProfiler, Result
from megatron.torch_profile.hooks import cuda_graphs

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning"),
    needs_stop_in_a_thread,
]


@pytest.fixture
def no_graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cuda_graphs, "_used", False)
    monkeypatch.setattr(cuda_graphs, "_under_way", 0)
    installed = cuda_graphs.captures.active
    cuda_graphs.captures.remove()
    yield
    if installed:
        cuda_graphs.captures.apply()


@pytest.mark.usefixtures("no_graphs")
def test_beside_cuda_graphs_training_stops_it_itself(tmp_path: Path, said: list[str]) -> None:
    cuda_graphs.expect()
    recorder = make(tmp_path)
    train(recorder, range(1, 6))
    end(recorder)
    assert files_below(tmp_path) == [TRACE]
    assert any("CUDA graphs are replayed" in line for line in said)


@pytest.mark.usefixtures("no_graphs")
def test_a_graph_that_is_captured_inside_a_window_is_noticed_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    monkeypatch.setattr(torch.cuda.graphs.CUDAGraph, "capture_begin", lambda graph: None)
    recorder = make(tmp_path)
    train(recorder, range(1, 4))
    torch.cuda.graphs.CUDAGraph.capture_begin(None)
    train(recorder, range(4, 6))
    end(recorder)
    assert files_below(tmp_path) == [TRACE]
    assert sum("CUDA graphs are replayed" in line for line in said) == 1
    assert any("the profiler's stop held training" in line for line in said)
    assert not hasattr(torch.cuda.graphs.CUDAGraph.capture_begin, "__wrapped__"), "taken back"


@pytest.mark.usefixtures("no_graphs")
def test_a_capture_waits_for_the_stop_but_not_for_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    at_capture: list[int] = []
    stops: list[int] = []
    monkeypatch.setattr(
        torch.cuda.graphs.CUDAGraph, "capture_begin", lambda graph: at_capture.append(len(stops))
    )
    stop = NativeProfiler.stop

    def slow_stop(profiler: NativeProfiler) -> Result:
        time.sleep(0.5)
        result = stop(profiler)
        stops.append(1)
        return result

    monkeypatch.setattr(NativeProfiler, "stop", slow_stop)
    saves_wait_at(gate, monkeypatch)
    recorder = make(tmp_path)
    train(recorder, range(1, 5))
    torch.cuda.graphs.CUDAGraph.capture_begin(None)
    assert at_capture == [1]
    assert recorder.exporter.in_flight == 1
    gate.open()
    end(recorder)
    assert files_below(tmp_path) == [TRACE]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")
@pytest.mark.usefixtures("no_graphs")
def test_training_that_replays_a_graph_from_before_lives_on(
    tmp_path: Path, said: list[str]
) -> None:
    inputs = torch.ones(64, 64, device="cuda")
    torch.mm(inputs, inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = torch.mm(inputs, inputs).relu()
    recorder = make(tmp_path, device="cuda", repeat=2)
    for iteration in range(1, 20):
        recorder.begin_step(iteration)
        for _ in range(100):
            graph.replay()
        torch.cuda.synchronize()
    end(recorder)
    assert outputs.sum().item() == 64**3
    traces = [path for path in files_below(tmp_path) if path.endswith(".trace.json.gz")]
    assert len(traces) == 2
    assert sum("CUDA graphs are replayed" in line for line in said) == 1
