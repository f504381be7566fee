# SPDX-License-Identifier: Apache-2.0
"""Real collections of real garbage in recorded windows: their spans, and that all is put back."""

from __future__ import annotations

import gc
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from recordings import end, make
from recordings import signals as signals
from recordings import training_stops as training_stops
from trace_builder import read

from megatron.torch_profile.plan.schedule import Window
from megatron.torch_profile.record.trace_metadata import TraceNotes
from megatron.torch_profile.spans import garbage_collections
from megatron.torch_profile.spans.garbage_collections import GarbageCollections
from megatron.torch_trace.analysis.run.rank import read_activity

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning"),
    pytest.mark.skipif(
        sys.version_info < (3, 12), reason="Python before 3.12 has no spans of collections"
    ),
]
OLD, MIDDLE = "garbage collection (generation 2)", "garbage collection (generation 1)"


@pytest.fixture(autouse=True)
def only_the_tests_collections() -> Iterator[None]:
    """No collection by itself, and callbacks and hook in the end as they were."""
    before = ([*gc.callbacks], sys.unraisablehook)
    thresholds = gc.get_threshold()
    gc.disable()
    yield
    gc.set_threshold(*thresholds)
    gc.enable()
    assert ([*gc.callbacks], sys.unraisablehook) == before


class Cycle:
    """Garbage for the collector alone, as soon as nobody has it."""

    def __init__(self) -> None:
        self.itself = self


def trained(folder: Path, work: Callable[[], object], **flags: Any) -> Path:
    """The trace of iteration 3, in which `work` is done."""
    recorder = make(folder, **flags)
    for iteration in range(1, 5):
        recorder.begin_step(iteration)
        with torch.profiler.record_function("work"):
            if iteration == 3:
                work()
    end(recorder)
    return folder / "iter-0000003/rank-0.pt.trace.json.gz"


def annotations(trace: Path) -> list[dict[str, Any]]:
    events = read(trace)["traceEvents"]
    found = [one for one in events if one.get("cat") == "user_annotation"]
    return sorted(found, key=lambda one: float(one["ts"]))


def collections(trace: Path) -> list[str]:
    return [one["name"] for one in annotations(trace) if one["name"].startswith("garbage")]


def told(trace: Path) -> dict[str, int]:
    """What the metadata say of collections."""
    found: dict[str, int] = read(trace)["torch_profile"]["garbage_collection"]
    return found


def inside(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    begin, finish = float(outer["ts"]), float(outer["ts"]) + float(outer["dur"])
    start = float(inner["ts"])
    same = (inner["pid"], inner["tid"]) == (outer["pid"], outer["tid"])
    return same and begin <= start and start + float(inner["dur"]) <= finish


def test_a_loop_that_makes_garbage_leaves_a_span_for_each_collection(tmp_path: Path) -> None:
    generations: list[tuple[str, int]] = []

    def the_users(phase: str, info: dict[str, int]) -> None:
        generations.append((phase, info["generation"]))

    def work() -> None:
        Cycle()
        gc.collect(0)
        gc.collect(1)
        gc.collect()

    gc.callbacks.append(the_users)
    try:
        trace = trained(tmp_path, work)
        assert gc.callbacks[-1] is the_users
    finally:
        gc.callbacks.remove(the_users)
    found = annotations(trace)
    names = [one["name"] for one in found]
    assert names == ["ProfilerStep#3", "work", MIDDLE, OLD]
    assert [inside(found[n + 1], found[n]) for n in (0, 1)] == [True, True]
    assert inside(found[3], found[1])
    assert generations == [(phase, n) for n in (0, 1, 2) for phase in ("start", "stop")]
    counts = told(trace)
    lengths = [round(1_000 * float(one["dur"])) for one in found if one["name"] in (MIDDLE, OLD)]
    assert (counts["collections"], counts["unrecorded"]) == (3, 0)
    assert counts["time_ns"] > counts["longest_ns"] >= max(lengths) / 2


def test_collections_that_python_begins_have_spans(tmp_path: Path) -> None:
    gc.set_threshold(700, 10, 1_000)

    def work() -> None:
        gc.enable()
        kept = [Cycle() for _ in range(40_000)]
        gc.disable()
        assert kept

    assert MIDDLE in collections(trained(tmp_path, work))


def test_a_span_lies_on_the_thread_that_collects(tmp_path: Path) -> None:
    def work() -> None:
        thread = threading.Thread(target=gc.collect)
        thread.start()
        thread.join()

    trace = trained(tmp_path, work)
    step, *_, collection = annotations(trace)
    assert collection["name"] == OLD
    assert collection["tid"] != step["tid"]
    assert told(trace)["unrecorded"] == 0


@pytest.mark.usefixtures("training_stops")
def test_collections_of_threads_that_are_not_recorded_are_counted(tmp_path: Path) -> None:
    def work() -> None:
        thread = threading.Thread(target=gc.collect)
        thread.start()
        thread.join()
        gc.collect()

    trace = trained(tmp_path, work)
    assert collections(trace) == [OLD]
    assert (told(trace)["collections"], told(trace)["unrecorded"]) == (2, 1)


class _Collects(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
        return given * 1

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        gc.collect()
        return gradients[0]


def test_a_collection_lies_inside_of_whatever_the_thread_is_in(tmp_path: Path) -> None:
    class Model(torch.nn.Module):
        def forward(self, given: torch.Tensor) -> Any:
            gc.collect(1)
            return _Collects.apply(given)  # type: ignore[no-untyped-call]

    model = Model()

    def work() -> None:
        model(torch.ones(2, requires_grad=True)).sum().backward()

    trace = trained(tmp_path, work, model=[model], spans=["modules"])
    found = {one["name"]: one for one in annotations(trace)}
    assert inside(found[MIDDLE], found["model: Model"])
    assert inside(found[OLD], found["work"])
    activity = read_activity(trace)
    node = activity.named(activity.ops, lambda name: "evaluate_function: _Collects" in name)
    old = activity.named(activity.ops, OLD.__eq__)
    ops = activity.ops
    assert ops.start[node] <= ops.start[old] < ops.end[old] <= ops.end[node]


def test_a_window_without_operators_has_the_spans(tmp_path: Path) -> None:
    assert collections(trained(tmp_path, gc.collect, no_operators=True)) == [OLD]


def test_a_failure_is_said_once_and_nothing_is_claimed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(name: str) -> None:
        raise OSError("no range")

    monkeypatch.setattr(garbage_collections, "begin", fails)
    recorded = GarbageCollections(everywhere=True)
    recorded.start()
    gc.collect()
    gc.collect()
    recorded.close()
    assert [one.getMessage().split(": ", 1)[1] for one in caplog.records] == ["OSError: no range"]
    assert recorded.told is None


def test_whoever_empties_the_list_of_callbacks_is_no_failure() -> None:
    others = [*gc.callbacks]
    recorded = GarbageCollections(everywhere=True)
    recorded.start()
    gc.callbacks.clear()
    recorded.close()
    gc.callbacks.extend(others)
    assert recorded.told == {"collections": 0, "time_ns": 0, "longest_ns": 0, "unrecorded": 0}


def test_collections_between_start_and_close_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100, 350, 1_000, 1_050])
    monkeypatch.setattr(garbage_collections, "perf_counter_ns", lambda: next(clock))
    recorded = GarbageCollections(everywhere=True)
    gc.collect()
    recorded.start()
    gc.collect()
    gc.collect()
    recorded.close()
    gc.collect()
    recorded.close()
    assert recorded.told == {"collections": 2, "time_ns": 300, "longest_ns": 250, "unrecorded": 0}


def test_a_collection_that_began_before_the_window_is_not_measured() -> None:
    recorded = GarbageCollections(everywhere=True)
    recorded.start()
    gc.callbacks[-1]("stop", {"generation": 2})
    recorded.close()
    assert recorded.told == {"collections": 0, "time_ns": 0, "longest_ns": 0, "unrecorded": 0}


class Profiler:
    """Keeps what is written into the trace."""

    def __init__(self) -> None:
        self.written: dict[str, Any] = {}

    def add_metadata_json(self, key: str, value: str) -> None:
        self.written[key] = json.loads(value)


def test_the_metadata_of_a_window_hold_the_collections_in_it() -> None:
    profiler = Profiler()
    notes = TraceNotes(profiler, {"rank": 0}, Window(3, 4, warmup=1))
    gc.collect()
    notes.complete()
    gc.collect()
    counts = profiler.written["torch_profile"]["garbage_collection"]
    assert (counts["collections"], counts["unrecorded"]) == (1, 1)
    assert 0 < counts["longest_ns"] == counts["time_ns"]


def test_a_window_without_a_trace_leaves_no_callback() -> None:
    TraceNotes(Profiler(), {}, Window(3, 4, warmup=1)).close()
