# SPDX-License-Identifier: Apache-2.0
"""Who tells of a window, when, and what a failure there does not end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from window_stand_ins import Program, Run, TextWriter, capture

from megatron.torch_profile.followers import followers
from megatron.torch_profile.hooks import megatron_names
from megatron.torch_profile.hooks.megatron_names import PATCHES
from megatron.torch_profile.publish import window_results
from megatron.torch_profile.publish.window_results import WindowResults, training


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Program]]:
    Program.started = []
    monkeypatch.setattr(window_results, "Program", Program)
    monkeypatch.setattr(followers, "results", None)
    yield Program.started
    if followers.results is not None:
        followers.results.abandon()


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What Megatron has on this rank; a test fills it."""
    here: dict[str, Any] = {}
    monkeypatch.setattr(window_results, "megatrons", lambda name: lambda: here.get(name))
    return here


@pytest.fixture
def begin(tmp_path: Path, writers: dict[str, Any]) -> Callable[..., Any]:
    """Begins a training; returns who follows it here, if anybody does."""

    def start(**options: Any) -> WindowResults | None:
        args = SimpleNamespace(wandb_project="p", tensorboard_dir=None)
        with training(capture(tmp_path, **options), args):
            return followers.results

    return start


def test_a_windows_summary_reaches_every_sink_at_a_later_log(
    begin: Callable[..., Any],
    writers: dict[str, Any],
    programs: list[Program],
    tmp_path: Path,
    said: list[str],
) -> None:
    writers["wandb"], writers["tensorboard"] = Run(), TextWriter()
    results = begin()
    results.end_iteration(3, logs=True)
    assert programs == [], "the window is not over"
    results.end_iteration(4, logs=False)
    (program,) = programs
    assert program.command[3:] == [
        *(str(tmp_path / "iter-0000003-0000004"), "--wait", "5", "--ranks", "0"),
        *("--partials", "--analyse"),
    ]
    results.end_iteration(5, logs=True)
    program.end()
    results.end_iteration(6, logs=False)
    assert writers["wandb"].logged == [], "only where Megatron logs"
    results.end_iteration(8, logs=True)

    ((step, values),) = writers["wandb"].logged
    assert (step, values["profile/iteration"], values["profile/idle_pct"]) == (8, 4, 12.5)
    assert writers["wandb"].axes == {
        "profile/iteration": None,
        "profile/*": "profile/iteration",
    }
    assert writers["tensorboard"].scalars == {"profile/idle_pct": {4: 12.5}}
    assert writers["tensorboard"].text == "- **high** A fact. An advice."
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {
        "iteration": 4,
        "profile/idle_pct": 12.5,
    }
    assert said == ["iterations 3-4: idle 12 % (1 rank; 1 finding)"]
    assert len(programs) == 2, "one window at a time"
    assert programs[1].folder.name == "iter-0000006-0000007"


def test_the_end_of_training_waits_for_what_is_under_way(
    begin: Callable[..., Any],
    writers: dict[str, Any],
    programs: list[Program],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writers["wandb"] = Run()
    results = begin()
    for iteration in range(1, 7):  # the second window is cut short
        results.end_iteration(iteration, logs=False)
    waited = 0.0

    def sleep(seconds: float) -> None:
        nonlocal waited
        waited += seconds
        for program in programs:
            if program.answer is None and waited > 1.0:
                program.end()

    clock = SimpleNamespace(sleep=sleep, monotonic=lambda: waited)
    monkeypatch.setattr(window_results, "time", clock)
    results.finish()
    assert [values["profile/iteration"] for _, values in writers["wandb"].logged] == [4, 7]
    assert waited < 5.0
    assert followers.results is None


def test_the_wait_has_a_bound(
    begin: Callable[..., Any],
    writers: dict[str, Any],
    programs: list[Program],
    warned: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    writers["tensorboard"] = TextWriter()
    results = begin()
    results.end_iteration(4, logs=False)
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(window_results, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: now))
    results.finish()
    assert now == pytest.approx(5.0, abs=0.2)
    assert programs[0].killed
    assert warned == [
        "there is no summary of iterations 3-4 after 5 s; make one with torch-trace analyze "
        f"{tmp_path}/iter-0000003-0000004"
    ]


def test_nobody_waits_after_an_exception(
    writers: dict[str, Any], programs: list[Program], tmp_path: Path
) -> None:
    writers["tensorboard"] = TextWriter()
    args = SimpleNamespace(wandb_project="", tensorboard_dir="t")

    def explode() -> None:
        assert followers.results is not None
        followers.results.end_iteration(4, logs=False)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), training(capture(tmp_path), args):
        explode()
    assert programs[0].killed
    assert followers.results is None


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ({"died": "was killed by SIGKILL"}, "was killed by SIGKILL"),
        ({"traces": [], "error": "nothing could be analysed."}, "nothing could be analysed."),
        ({"traces": []}, "no trace of these iterations was written"),
    ],
)
def test_a_window_that_cannot_be_analysed_is_one_line(
    begin: Callable[..., Any],
    writers: dict[str, Any],
    programs: list[Program],
    warned: list[str],
    answer: dict[str, Any],
    line: str,
) -> None:
    writers["wandb"] = Run()
    results = begin()
    results.end_iteration(4, logs=True)
    programs[0].answer = answer
    results.end_iteration(5, logs=True)
    assert warned == [f"no summary of iterations 3-4: {line}"]
    assert writers["wandb"].logged == []
    results.end_iteration(7, logs=True)
    assert len(programs) == 2, "the next window is tried"


def test_the_rank_with_a_sink_tells_and_without_any_rank_0_where_asked(
    begin: Callable[..., Any], writers: dict[str, Any], tmp_path: Path
) -> None:
    assert begin(rank=0) is None, "a run is on another rank"
    assert begin(rank=0, summary="always") is None
    nobody = SimpleNamespace(wandb_project="", tensorboard_dir=None)
    for rank, summary, tells in [(0, "auto", False), (0, "always", True), (1, "always", False)]:
        with training(capture(tmp_path, rank=rank, summary=summary), nobody):
            assert (followers.results is not None) == tells
    writers["wandb"] = Run()
    assert begin() is not None
    assert begin(summary="never") is None
    writers["wandb"].run = None
    assert begin() is None, "the run has ended"


def test_without_a_gpu_one_line_says_so_unless_it_is_wanted(
    begin: Callable[..., Any], writers: dict[str, Any], said: list[str]
) -> None:
    writers["wandb"] = Run()
    assert begin(activities=["cpu"]) is None
    assert begin(device="cpu") is None
    assert (
        said
        == [
            "windows get no summary, because no GPU is recorded; --torch-profile-summary always "
            "makes one"
        ]
        * 2
    )
    assert begin(device="cpu", summary="always") is not None


def test_traces_become_an_artifact_of_the_run_that_is_here(
    begin: Callable[..., Any], writers: dict[str, Any], programs: list[Program]
) -> None:
    run = writers["wandb"] = Run()
    results = begin(summary="never", wandb_artifacts=True)
    results.end_iteration(4, logs=True)
    assert "--analyse" not in programs[0].command
    programs[0].end()
    results.end_iteration(5, logs=True)
    results.finish()
    ((artifact, aliases),) = run.artifacts
    assert (artifact.type, artifact.name) == ("torch-profile", "torch-profile-abc")
    assert aliases == ["latest", "iter-0000003-0000004"]
    assert list(artifact.manifest.entries) == ["iter-0000003-0000004/rank-0.pt.trace.json"]
    assert run.logged == [], "no summary was wanted"


def test_an_end_that_may_come_from_the_scheduler_waits_only_briefly(
    writers: dict[str, Any],
    programs: list[Program],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writers["tensorboard"] = TextWriter()
    args = SimpleNamespace(wandb_project="", tensorboard_dir="t")

    def leave() -> None:
        assert followers.results is not None
        followers.results.end_iteration(4, logs=False)
        raise SystemExit

    with pytest.raises(SystemExit), training(capture(tmp_path, exit_timeout=600), args):
        leave()
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(window_results, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: now))
    assert followers.results is not None
    followers.results.finish()
    assert now == pytest.approx(15.0, abs=0.2)
    assert programs[0].killed


def test_windows_are_followed_by_the_global_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    results = SimpleNamespace(end_iteration=lambda *args, **kwargs: told.append((args, kwargs)))
    monkeypatch.setattr(followers, "results", results)
    monkeypatch.setattr(
        megatron_names, "_megatron_args", lambda: SimpleNamespace(curr_iteration=9, log_interval=5)
    )
    (training_log,) = (patch for patch in PATCHES if patch.name == "training_log")
    assert training_log.wrapper(lambda: "flag", None, (), {}) == "flag"
    assert told == [((10,), {"logs": True})]
    monkeypatch.setattr(followers, "results", None)
