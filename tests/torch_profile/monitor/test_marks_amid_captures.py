# SPDX-License-Identifier: Apache-2.0
"""Events of the GPU while training captures a CUDA graph: whoever asks one then ends the capture.

Here without a GPU, with events that the test lets come.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from megatron.torch_profile import install, uninstall
from megatron.torch_profile.hooks import cuda_graphs
from megatron.torch_profile.monitor.hangs.flight_entries import flight_entries
from megatron.torch_profile.monitor.hangs.watchdog import pending_seconds
from megatron.torch_profile.monitor.iterations.marks import GpuMarks
from megatron.torch_profile.monitor.iterations.phase_clock import PhaseClock


class Graph:
    """torch's cannot be made without a driver."""

    fails = False

    def capture_begin(self) -> None:
        if self.fails:
            raise RuntimeError("no capture")

    def capture_end(self) -> None:
        if self.fails:
            raise RuntimeError("the capture was ended")


class Event:
    """Done at once; whoever asks meanwhile waits until he may."""

    asked = 0
    may = threading.Event()
    being_asked = threading.Event()

    def __init__(self, enable_timing: bool) -> None:
        pass

    def record(self, stream: object) -> None:
        pass

    def query(self) -> bool:
        Event.asked += 1
        Event.being_asked.set()
        return Event.may.wait(10)

    def elapsed_time(self, end: Event) -> float:
        Event.asked += 1
        return 1.0


@pytest.fixture(autouse=True)
def without_a_driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    installed = cuda_graphs.captures.active
    uninstall()
    Event.asked = 0
    Event.may.set()
    Event.being_asked.clear()
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(torch.cuda.graphs, "CUDAGraph", Graph)
        meanwhile.setattr(cuda_graphs, "_used", False)
        meanwhile.setattr(cuda_graphs, "_under_way", 0)
        meanwhile.setattr(torch.cuda, "Event", Event)
        meanwhile.setattr(torch.cuda, "current_stream", lambda: "stream")
        meanwhile.setattr(torch.cuda, "current_device", lambda: 0)
        meanwhile.setattr(torch.cuda, "set_device", lambda device: None)
        meanwhile.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        meanwhile.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 7, raising=False)
        install()
        yield
        uninstall()
    if installed:
        install()


def a_clock() -> PhaseClock:
    """Two iterations have ended."""
    clock = PhaseClock(GpuMarks())
    for iteration in (1, 2, 3):
        clock.begin_step(iteration)
    return clock


def test_no_event_is_asked_while_a_graph_is_captured() -> None:
    clock, graph = a_clock(), Graph()
    graph.capture_begin()
    assert (clock.read(), Event.asked) == ([], 0)
    graph.capture_end()
    assert [one.iteration for one in clock.read()] == [1, 2]


@pytest.mark.parametrize("begins", [False, True])
def test_a_capture_that_fails_is_over(begins: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, graph = a_clock(), Graph()
    if begins:
        graph.capture_begin()
    monkeypatch.setattr(graph, "fails", True, raising=False)
    with pytest.raises(RuntimeError):
        (graph.capture_end if begins else graph.capture_begin)()
    assert len(clock.read()) == 2


def test_a_capture_begins_when_the_event_that_is_being_asked_has_answered() -> None:
    clock, graph = a_clock(), Graph()
    Event.may.clear()
    reader = threading.Thread(target=clock.read)
    reader.start()
    assert Event.being_asked.wait(10)
    begun = threading.Event()
    trains = threading.Thread(target=lambda: (graph.capture_begin(), begun.set()))
    trains.start()
    assert not begun.wait(0.1)
    Event.may.set()
    trains.join()
    reader.join()
    assert begun.is_set()


def test_torchs_record_of_calls_is_not_asked_for_while_a_graph_is_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bool] = []

    def dump(**_: object) -> bytes:
        asked.append(True)
        return b""

    monkeypatch.setattr(torch._C._distributed_c10d, "_dump_nccl_trace", dump, raising=False)
    monkeypatch.setattr(torch.distributed, "is_available", lambda: True)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: "nccl", raising=False)
    graph = Graph()
    graph.capture_begin()
    assert (flight_entries(), pending_seconds(), asked) == (None, 0.0, [])
    graph.capture_end()
    pending_seconds()
    assert asked == [True]
