# SPDX-License-Identifier: Apache-2.0
"""The recorder against torch.profiler itself: a training loop of three lines, traces read back."""

from __future__ import annotations

import gc
import json
import os
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from recordings import end, make, spans, train
from recordings import signals as signals
from recordings import training_stops as training_stops
from trace_builder import read
from written_files import files_below

from megatron.torch_profile.export import background
from megatron.torch_profile.export.native_profiler import Result
from megatron.torch_profile.record import cupti
from megatron.torch_profile.record.compilations import COUNTS
from megatron.torch_trace.system.memory import HostMemory

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning")


def test_a_window_is_one_trace_with_a_mark_for_each_iteration(tmp_path: Path) -> None:
    recorder = make(tmp_path, active=2)
    train(recorder, range(1, 8))
    end(recorder)
    assert files_below(tmp_path) == ["iter-0000003-0000004/rank-0.pt.trace.json.gz"]
    assert spans(tmp_path / files_below(tmp_path)[0], "ProfilerStep", "work") == [
        "ProfilerStep#3",
        "work of 3",
        "ProfilerStep#4",
        "work of 4",
    ]


def test_the_trace_carries_who_and_when(tmp_path: Path) -> None:
    recorder = make(tmp_path)
    train(recorder, range(1, 5))
    end(recorder)
    written = read(tmp_path / "iter-0000003/rank-0.pt.trace.json.gz")["torch_profile"]
    pauses = written.pop("garbage_collection")
    assert written == {
        "rank": 0,
        "window": {"first": 3, "last": 3},
        "compile": dict.fromkeys(COUNTS, 0),
    }
    assert pauses.keys() == {"collections", "time_ns", "longest_ns", "unrecorded"}


def test_every_cycle_is_a_trace_of_its_own(tmp_path: Path) -> None:
    recorder = make(tmp_path, repeat=3)
    train(recorder, range(1, 10))
    end(recorder)
    assert files_below(tmp_path) == [
        f"iter-{iteration:07d}/rank-0.pt.trace.json.gz" for iteration in (3, 5, 7)
    ]


def test_windows_that_touch_lose_no_iteration(tmp_path: Path) -> None:
    recorder = make(tmp_path, iterations=["2-3", "4-5"])
    train(recorder, range(1, 7))
    end(recorder)
    assert [spans(tmp_path / trace, "ProfilerStep") for trace in files_below(tmp_path)] == [
        ["ProfilerStep#2", "ProfilerStep#3"],
        ["ProfilerStep#4", "ProfilerStep#5"],
    ]


def test_cupti_is_told_how_many_iterations_there_are_to_the_next_warm_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gaps: list[int | None] = []
    monkeypatch.setattr(cupti, "before_stop", lambda gap, _: gaps.append(gap))
    recorder = make(tmp_path, iterations=["3-4", "6", "7-8", "15"], warmup=1, last=17)
    train(recorder, range(1, 18))
    end(recorder)
    assert gaps == [0, 0, 5, None]


def test_outside_its_windows_there_is_no_profiler(tmp_path: Path) -> None:
    recorder = make(tmp_path, skip_first=2)
    seen = {}
    for iteration in range(1, 8):
        recorder.begin_step(iteration)
        seen[iteration] = recorder._open is not None
    assert seen == {1: False, 2: False, 3: True, 4: True, 5: False, 6: False, 7: False}
    end(recorder)


@pytest.mark.parametrize(
    ("compression", "suffix"), [("gzip", ".gz"), ("zstd", ".zst"), ("none", "")]
)
def test_compression(tmp_path: Path, compression: str, suffix: str) -> None:
    recorder = make(tmp_path, compression=compression)
    train(recorder, range(1, 5))
    end(recorder)
    assert files_below(tmp_path) == [f"iter-0000003/rank-0.pt.trace.json{suffix}"]
    assert spans(tmp_path / files_below(tmp_path)[0], "ProfilerStep") == ["ProfilerStep#3"]


def test_artifacts_lie_beside_the_traces_folder_not_in_it(tmp_path: Path) -> None:
    recorder = make(
        tmp_path, key_averages=True, stacks=True, with_stack=True, execution_trace=True, repeat=2
    )
    train(recorder, range(1, 8))
    end(recorder)
    recorder.exporter._follow_ups.wait()
    for window in ("iter-0000003", "iter-0000005"):
        artifacts = tmp_path / window / "artifacts"
        assert "aten::linear" in (artifacts / "rank-0.key_averages.txt").read_text()
        assert (artifacts / "rank-0.stacks.txt").stat().st_size > 0
        execution = json.loads((artifacts / "rank-0.execution_trace.json").read_text())
        assert any(node["name"] == "aten::linear" for node in execution["nodes"])


def test_spans_are_there_inside_the_window_only(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    recorder = make(tmp_path, with_modules=True, model=[model])
    train(recorder, range(1, 5), model=model)
    end(recorder)
    assert spans(tmp_path / files_below(tmp_path)[0], "model: ", "0: ") == [
        "model: Sequential",
        "0: Linear",
    ]
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize(("given", "level"), [(None, "4"), ("0", "0")])
def test_kineto_is_quiet_unless_somebody_wants_to_hear_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None, level: str
) -> None:
    monkeypatch.setenv("KINETO_LOG_LEVEL", given or "")
    if given is None:
        monkeypatch.delenv("KINETO_LOG_LEVEL")
    make(tmp_path).close()
    assert os.environ["KINETO_LOG_LEVEL"] == level


def test_a_trace_is_never_overwritten(tmp_path: Path, warned: list[str]) -> None:
    target = tmp_path / "iter-0000003/rank-0.pt.trace.json.gz"
    target.parent.mkdir()
    target.write_text("precious")
    recorder = make(tmp_path)
    train(recorder, range(1, 5))
    end(recorder)
    assert target.read_text() == "precious"
    assert f"{target} exists, and traces are never overwritten; see {target.parent}" in warned[0]


@pytest.mark.parametrize(
    ("flags", "free", "frees"),
    [
        ({}, None, "pause"),
        ({"iterations": ["3", "7"]}, None, "next window"),
        ({}, 1, "at once"),
        ({"export": "sync"}, None, "at once"),
    ],
    ids=str,
)
def test_what_kineto_holds_of_a_saved_trace_is_freed_when_nothing_waits_for_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: dict[str, Any],
    free: int | None,
    frees: str,
    request: pytest.FixtureRequest,
) -> None:
    if "export" not in flags:
        request.getfixturevalue("training_stops")
    if free is not None:
        monkeypatch.setattr(background, "host_memory", lambda: HostMemory(free, 0))
    recorder = make(tmp_path, **flags)
    gc.disable()  # as --manual-gc does
    try:
        train(recorder, range(1, 4))
        held = weakref.ref(recorder._open.profiler.profiler)
        recorder.begin_step(4)
        recorder.exporter.wait()
        assert (held() is None) == (frees == "at once")
        if frees == "pause":
            recorder.begin_pause()
        elif frees == "next window":
            recorder.begin_step(6)
        assert held() is None
    finally:
        gc.enable()
        end(recorder)


def test_what_a_thread_has_saved_it_has_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[bool] = []
    free = Result.free

    def remember(result: Result) -> None:
        freed.append(result.recorded)
        free(result)

    monkeypatch.setattr(Result, "free", remember)
    recorder = make(tmp_path, repeat=3)
    train(recorder, range(1, 9))
    end(recorder)
    assert freed == [True, True, True]


@pytest.mark.parametrize(
    ("moved", "way"),
    [(86400.0, "forward by 86,400 s"), (-1e9, "back by 1,000,000,000 s"), (0.1, "")],
)
def test_a_clock_that_is_set_in_a_window_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warned: list[str], moved: float, way: str
) -> None:
    recorder = make(tmp_path)
    train(recorder, range(1, 4))
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + moved)
    train(recorder, range(4, 6))
    end(recorder)
    assert warned == (
        [
            f"the system's clock was set {way} in the window of iteration 3: times in its trace "
            "are wrong; record another window"
        ]
        if way
        else []
    )
    assert files_below(tmp_path) == ["iter-0000003/rank-0.pt.trace.json.gz"]


def test_a_window_whose_iterations_training_skips_is_said_and_the_next_one_is_recorded(
    tmp_path: Path, warned: list[str]
) -> None:
    recorder = make(tmp_path, iterations=["3", "5-6", "9"])
    train(recorder, [1, 7, 8, 9, 10])
    end(recorder)
    assert warned == ["training skipped iteration 3", "training skipped iterations 5-6"]
    assert files_below(tmp_path) == ["iter-0000009/rank-0.pt.trace.json.gz"]
