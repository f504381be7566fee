# SPDX-License-Identifier: Apache-2.0
"""A user's own torch.profiler beside ours: theirs is whole, ours keeps what it can, training ends.

torch runs one profiler in a process, so ours gives way, wherever the other one begins.
"""

from __future__ import annotations

import gc
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from recordings import end, make, spans
from recordings import signals as signals
from torch.autograd import profiler as autograd_profiler
from torch.autograd import profiler_legacy
from torch.profiler import ProfilerActivity, profile, schedule
from written_files import files_below

from megatron.torch_profile.record import other_profilers
from megatron.torch_profile.record.recorder import Recorder

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
CPU = [ProfilerActivity.CPU]
GIVES_WAY = "another torch.profiler runs in this process, and torch runs one at a time"
PART = "iter-0000003-0000005/rank-0.partial.pt.trace.json.gz"
WHOLE = "iter-0000003-0000005/rank-0.pt.trace.json.gz"


@pytest.fixture(autouse=True)
def nothing_stays_wrapped() -> Iterator[None]:
    gc.collect()
    before = {name: getattr(autograd_profiler, name) for name in other_profilers._BEGINS[:2]}
    yield
    assert {name: getattr(autograd_profiler, name) for name in before} == before
    assert not torch.autograd._profiler_enabled()


class Training:
    """Iterations of one matrix product each, and what the user does before and in the middle."""

    def __init__(self, recorder: Recorder | None, last: int = 8) -> None:
        self.recorder = recorder
        self.last = last
        self.values: list[float] = []

    def run(self, user: Callable[[int], None] = lambda iteration: None) -> list[float]:
        torch.manual_seed(0)
        weight = torch.randn(4, 4)
        for iteration in range(1, self.last + 1):
            if self.recorder:
                self.recorder.begin_step(iteration)
            weight = weight @ weight / 4
            user(iteration)
            self.values.append(weight.sum().item())
        if self.recorder:
            end(self.recorder)
        return self.values


UNDISTURBED = Training(None).run()


def products(count: int) -> None:
    for _ in range(count):
        torch.ones(2, 2) @ torch.ones(2, 2)


def products_in(profiler: Any, folder: Path) -> int:
    """How many matrix products the user's trace holds, as saved by torch."""
    profiler.export_chrome_trace(str(folder / "user.json"))
    events = json.loads((folder / "user.json").read_text())["traceEvents"]
    return sum(event.get("name") == "aten::mm" for event in events)


@pytest.mark.parametrize(
    ("opens", "closes", "ours", "steps"),
    [
        pytest.param(0, 99, [], [], id="before training, to its end"),
        pytest.param(0, 2, [WHOLE], [3, 4, 5], id="before training, over in our warm-up"),
        pytest.param(2, 2, [WHOLE], [3, 4, 5], id="within our warm-up"),
        pytest.param(1, 4, [], [], id="before our warm-up, into our window"),
        pytest.param(2, 4, [], [], id="from our warm-up into our window"),
        pytest.param(3, 3, [PART], [3], id="within our first iteration"),
        pytest.param(4, 99, [PART], [3, 4], id="from our window on"),
    ],
)
def test_a_profiler_of_the_users_is_whole_and_ours_keeps_what_it_can(
    tmp_path: Path,
    warned: list[str],
    opens: int,
    closes: int,
    ours: list[str],
    steps: list[int],
) -> None:
    theirs = profile(activities=CPU)
    if opens == 0:
        theirs.start()
    recorder = make(tmp_path / "traces", active=3)

    def user(iteration: int) -> None:
        if iteration == opens:
            theirs.start()
        if opens <= iteration <= closes:
            products(10)
        if iteration == closes:
            theirs.stop()

    assert Training(recorder).run(user) == UNDISTURBED, "training is what it was"
    if closes == 99:
        theirs.stop()
    within = range(max(1, opens), min(8, closes) + 1)
    first = 1 if opens == 0 else 0  # of training's own products, that of the first iteration too
    assert products_in(theirs, tmp_path) == 11 * len(within) - 1 + first
    assert files_below(tmp_path / "traces") == ours
    said = {(): "leaves out", (PART,): "ends the window of", (WHOLE,): None}[tuple(ours)]
    gives_way = [f"rank 0 {said} iterations 3-5: {GIVES_WAY}"] if said else []
    assert [line for line in warned if GIVES_WAY in line] == gives_way
    for name in ours:
        found = spans(tmp_path / "traces" / name, "ProfilerStep")
        assert found == [f"ProfilerStep#{n}" for n in steps]


@pytest.mark.parametrize("warmup", [0, 1, 2])
@pytest.mark.parametrize("wait", [0, 1, 2, 3, 4, 5])
def test_a_schedule_of_the_users_steps_through_our_window(
    tmp_path: Path, wait: int, warmup: int
) -> None:
    found: list[int] = []
    recorder = make(tmp_path / "traces", active=3)
    with profile(
        activities=CPU,
        schedule=schedule(wait=wait, warmup=warmup, active=2, repeat=1),
        on_trace_ready=lambda p: found.append(products_in(p, tmp_path)),
    ) as theirs:
        assert Training(recorder, last=8).run(lambda _: theirs.step()) == UNDISTURBED
    recorded = range(wait + warmup, min(8, wait + warmup + 2))
    assert found == [len(recorded)]


@pytest.mark.parametrize(
    "kind",
    [
        lambda: profile(activities=CPU, record_shapes=True, with_stack=True),
        autograd_profiler.profile,
        lambda: autograd_profiler.profile(use_kineto=True, use_cpu=True),
        profiler_legacy.profile,
        autograd_profiler.emit_itt,
        autograd_profiler.emit_nvtx,
    ],
    ids=["torch.profiler", "autograd", "autograd with Kineto", "legacy", "emit_itt", "emit_nvtx"],
)
def test_every_kind_of_profiler_ends_our_window_and_later_windows_come(
    tmp_path: Path,
    kind: Callable[[], AbstractContextManager[Any]],
    warned: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)  # which emit_nvtx does
    recorder = make(tmp_path / "traces", active=2, repeat=2)

    def user(iteration: int) -> None:
        if iteration == 3:
            with kind():
                products(3)
            with kind():  # and again
                products(3)

    assert Training(recorder).run(user) == UNDISTURBED
    assert files_below(tmp_path / "traces") == [
        "iter-0000003-0000004/rank-0.partial.pt.trace.json.gz",
        "iter-0000006-0000007/rank-0.pt.trace.json.gz",
    ]
    assert [line for line in warned if GIVES_WAY in line] == [
        f"rank 0 ends the window of iterations 3-4: {GIVES_WAY}"
    ]


def test_one_that_another_thread_starts_waits_for_the_end_of_our_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_profilers, "_TURN_SECONDS", 300.0)
    theirs = profile(activities=CPU)

    def beside() -> None:
        with theirs:
            products(5)

    thread = threading.Thread(target=beside)
    recorder = make(tmp_path / "traces", active=3)

    def user(iteration: int) -> None:
        if iteration == 4:
            thread.start()
            while not recorder._others.asked:
                thread.join(0.01)
        if iteration == 5:
            thread.join()

    assert Training(recorder).run(user) == UNDISTURBED
    assert products_in(theirs, tmp_path) == 5
    assert spans(tmp_path / "traces" / PART, "ProfilerStep") == ["ProfilerStep#3", "ProfilerStep#4"]


def test_a_thread_that_training_waits_for_profiles_and_ours_loses_that_window_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warned: list[str]
) -> None:
    monkeypatch.setattr(other_profilers, "_TURN_SECONDS", 0.1)
    theirs = profile(activities=CPU)

    def beside() -> None:
        with theirs:
            products(5)

    def user(iteration: int) -> None:
        if iteration == 3:
            thread = threading.Thread(target=beside)
            thread.start()
            thread.join()

    recorder = make(tmp_path / "traces", active=2, repeat=2)
    assert Training(recorder).run(user) == UNDISTURBED
    assert products_in(theirs, tmp_path) == 5
    assert files_below(tmp_path / "traces") == ["iter-0000006-0000007/rank-0.pt.trace.json.gz"]
    assert warned[-1] == (
        "rank 0 loses the window of iterations 3-4: another profiler began before ours could be "
        "stopped"
    )


def test_a_failure_inside_the_users_profiler_is_the_users(tmp_path: Path) -> None:
    recorder = make(tmp_path / "traces", active=3)

    def user(iteration: int) -> None:
        if iteration == 4:
            with profile(activities=CPU):
                raise ZeroDivisionError("the user's own")

    with pytest.raises(ZeroDivisionError, match="the user's own"):
        Training(recorder).run(user)
    end(recorder)
    assert files_below(tmp_path / "traces") == [PART]


def test_a_result_that_was_cancelled_is_not_saved(tmp_path: Path, warned: list[str]) -> None:
    recorder = make(tmp_path, active=3)
    enable = torch._C._autograd._prepare_profiler  # past every name that is watched

    def user(iteration: int) -> None:
        if iteration == 4:
            own = autograd_profiler.profile(use_kineto=True)
            enable(own.config(create_trace_id=True), own.kineto_activities)

    Training(recorder).run(user)
    assert files_below(tmp_path) == []
    assert warned[-1].startswith("rank 0 ")
    assert warned[-1].endswith(
        "iterations 3-5: something else in this process has ended torch's profiler"
    )


def test_a_profiler_in_a_fork_waits_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = make(tmp_path, active=3)
    others = recorder._others
    others.hold()
    others.ending = True  # a thread stops ours, which a fork has not
    waited: list[tuple[Any, ...]] = []
    with monkeypatch.context() as fork:
        fork.setattr(others._free, "wait", lambda *seconds: waited.append(seconds))
        fork.setattr(os, "getpid", lambda: -1)
        with autograd_profiler.profile(use_kineto=True) as own:
            products(3)
    assert products_in(own, tmp_path) == 3
    assert waited == []
    others.release()
    end(recorder)
