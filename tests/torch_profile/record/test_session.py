# SPDX-License-Identifier: Apache-2.0
"""One call of `train`: whatever fails around it, training runs."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from megatron.torch_profile.followers import Idle, followers
from megatron.torch_profile.record import session
from megatron.torch_profile.record.recorder import Recorder
from megatron.torch_profile.record.session import training


@pytest.fixture
def args(tmp_path: Path) -> SimpleNamespace:
    return SimpleNamespace(
        torch_profile=True, torch_profile_dir=str(tmp_path), train_iters=10, iteration=0
    )


def test_a_training_is_followed_and_described(args: Any, tmp_path: Path) -> None:
    with training(args, [], lambda: 7):
        assert not isinstance(followers.steps, Idle)
        assert followers.plan is not None
    assert isinstance(followers.steps, Idle)
    assert followers.plan is None
    (run_file,) = tmp_path.rglob("run.json")
    assert json.loads(run_file.read_text())["model_flops_per_iteration"] == 7


def test_a_training_that_starts_again_in_the_same_process_is_a_run_of_its_own(
    args: Any, tmp_path: Path
) -> None:
    """As in-process restarts do, which come back after an exception."""
    for _ in range(2):
        with suppress(RuntimeError), training(args, [], lambda: 7):
            recorder = followers.steps
            for iteration in range(1, 4):
                recorder.begin_step(iteration)
            raise RuntimeError("a peer is gone")
        assert isinstance(recorder, Recorder)
        recorder.exporter.wait()
    assert sorted(path.name for path in tmp_path.rglob("*.gz")) == ["rank-0.pt.trace.json.gz"] * 2
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("leaves", "error"),
    [(None, None), (SystemExit(0), None), (ValueError("no such loss"), "ValueError")],
)
def test_a_training_that_leaves_its_loop_says_when_and_by_which_error(
    args: Any, tmp_path: Path, leaves: BaseException | None, error: str | None
) -> None:
    with suppress(ValueError, SystemExit), training(args, [], lambda: 7):
        assert not [*tmp_path.rglob("ended.json")]
        if leaves is not None:
            raise leaves
    (ended,) = tmp_path.rglob("ended.json")
    told = json.loads(ended.read_text())
    assert datetime.fromisoformat(told.pop("ended")).tzinfo is not None
    assert told == {"schema": 1, "error": error}


@pytest.mark.parametrize(("pid", "files"), [(os.getpid(), ["ended.json"]), (1, [])])
def test_a_fork_that_leaves_the_loop_of_its_parent_ends_nothing(
    pid: int, files: list[str], tmp_path: Path
) -> None:
    rank_0 = SimpleNamespace(rank=0, pid=pid)
    capture: Any = SimpleNamespace(topology=SimpleNamespace(me=rank_0), run_folder=tmp_path)
    session._write_end(capture, None)
    assert [path.name for path in tmp_path.iterdir()] == files


def test_without_the_flag_nothing_follows(args: Any, tmp_path: Path) -> None:
    args.torch_profile = False
    with training(args, [], lambda: 7):
        assert isinstance(followers.steps, Idle)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("part", ["Recorder", "_prepare_cupti", "_metadata", "_write_run_file"])
def test_a_failure_before_the_first_step_is_one_line_and_training_runs(
    part: str, args: Any, warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(session, part, fails)
    ran = False
    with training(args, [], lambda: None):
        ran = True
    assert ran
    assert warned == ["rank 0 trains without a profile: RuntimeError: no such luck"]


def test_ranks_that_cannot_agree_train_without_a_profile(
    args: Any, warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("a process group of another kind")

    monkeypatch.setattr(session.capture_plan, "agree", fails)
    with pytest.raises(ZeroDivisionError) as raised, training(args, [], lambda: None):
        raise ZeroDivisionError
    assert raised.value.__context__ is None
    assert warned == [
        "training goes on without a profile: RuntimeError: a process group of another kind"
    ]


def test_the_trainings_own_exception_comes_through(args: Any) -> None:
    with pytest.raises(ZeroDivisionError), training(args, [], lambda: None):
        raise ZeroDivisionError
    assert isinstance(followers.steps, Idle)


@pytest.mark.parametrize(
    ("ending", "after_failure"),
    [(None, False), (SystemExit(0), False), (RuntimeError(), True), (KeyboardInterrupt(), True)],
    ids=repr,
)
def test_a_recorder_knows_whether_other_ranks_may_be_gone(
    args: Any,
    monkeypatch: pytest.MonkeyPatch,
    ending: BaseException | None,
    after_failure: bool,
) -> None:
    closed: list[bool] = []

    class Follower(Idle):
        def close(self, *, after_failure: bool = False) -> None:
            closed.append(after_failure)

    monkeypatch.setattr(session, "_begin", lambda *_: Follower())
    with suppress(BaseException), training(args, [], lambda: None):
        if ending is not None:
            raise ending
    assert closed == [after_failure]


def model(graphed: bool = False) -> torch.nn.Module:
    made = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    if graphed:
        made.cuda_graphs = []
    return made


def lists() -> torch.nn.Module:
    """Lists of modules are never called, so the first called module has depth 2."""
    return torch.nn.ModuleList([torch.nn.ModuleList([torch.nn.Linear(2, 2)])])


def test_the_plan_counts_the_modules_that_get_spans(args: Any, said: list[str]) -> None:
    args.torch_profile_spans = ["modules"]
    with training(args, [model()], lambda: None):
        pass
    assert "spans of modules: 3 modules" in said


@pytest.mark.parametrize(
    ("chunks", "depth", "why"),
    [
        ([model(graphed=True)], None, "the model is in CUDA graphs or compiled (3 in CUDA graphs)"),
        ([lists()], 1, "the model has no module within --torch-profile-spans-depth"),
        (
            None,
            None,
            "this Megatron's train() does not take its model as an argument named model",
        ),
    ],
    ids=["graphs", "depth", "unknown"],
)
def test_a_model_without_any_span_is_a_warning(
    chunks: Any, depth: int | None, why: str, args: Any, warned: list[str]
) -> None:
    args.torch_profile_with_modules, args.torch_profile_spans_depth = True, depth
    with training(args, chunks, lambda: None):
        pass
    assert warned == [f"rank 0: no module gets a span: {why}"]


@pytest.mark.parametrize(
    ("of_the_package", "of_its_file", "told"),
    [
        ({"__version__": "0.19.2"}, None, "0.19.2"),
        ({}, {"__version__": "0.7.0"}, "0.7.0"),  # as core 0.6 and 0.7 are
        ({}, {}, None),
        ({}, None, None),
    ],
)
def test_a_megatron_whose_package_tells_no_version_is_recorded_all_the_same(
    of_the_package: dict[str, str],
    of_its_file: dict[str, str] | None,
    told: str | None,
    args: Any,
    warned: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = ModuleType("megatron.core")
    vars(core).update(of_the_package)
    monkeypatch.setitem(sys.modules, "megatron.core", core)
    numbers = None if of_its_file is None else ModuleType("megatron.core.package_info")
    if numbers is not None:
        vars(numbers).update(of_its_file or {})
    monkeypatch.setitem(sys.modules, "megatron.core.package_info", numbers)
    with training(args, [], lambda: 7):
        assert not isinstance(followers.steps, Idle)
    assert warned == []
    (run_file,) = tmp_path.rglob("run.json")
    assert json.loads(run_file.read_text())["versions"]["megatron-core"] == told


def test_timers_that_synchronise_the_gpu_are_said_before_training(
    args: Any, warned: list[str]
) -> None:
    args.timing_log_level = 2
    with training(args, [], lambda: None):
        pass
    assert warned == [
        "--timing-log-level 2: Megatron's timers synchronise the GPU at every start and stop, so "
        "the trace will show less overlap than training has without them; leave the flag out "
        "(--torch-profile-spans phases names the same phases in the trace)"
    ]


@pytest.mark.parametrize(("value", "is_said"), [("1", True), ("0", False), ("", False)])
def test_launches_that_wait_are_said_before_training(
    args: Any, warned: list[str], monkeypatch: pytest.MonkeyPatch, value: str, is_said: bool
) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", value)
    with training(args, [], lambda: None):
        pass
    assert warned == is_said * [
        "CUDA_LAUNCH_BLOCKING=1, which is for debugging, makes every launch wait until its work "
        "has ended, so the iterations will be slower than without it, and the trace will show no "
        "launch ahead of the GPU; unset it in the launch script"
    ]


def test_another_profiler_of_the_gpu_in_this_process_is_named(
    args: Any, warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    with training(args, [], lambda: None):
        pass
    assert warned == [
        "Nsight Systems (nsys) (NSYS_PROFILING_SESSION_ID is set) runs in this process too; only "
        "one profiler gets the GPU's events, so traces may hold no GPU work"
    ]


def test_a_folder_that_takes_no_record_of_the_run_takes_its_traces(
    args: Any, tmp_path: Path, warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(session, "atomic_path", full)
    with training(args, [], lambda: 7):
        recorder = followers.steps
        for iteration in range(1, 5):
            recorder.begin_step(iteration)
    assert isinstance(recorder, Recorder)
    recorder.exporter.wait()
    (trace,) = tmp_path.rglob("*.gz")
    run = trace.parent.parent
    assert warned == [
        f"{run / name} was not written: [Errno 28] No space left on device"
        for name in ("run.json", "ended.json")
    ]
    assert not (run / "run.json").exists()
