# SPDX-License-Identifier: Apache-2.0
"""A loop of the user's own under attach() and step(): the same files, and the same training."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from attached_training import Training, config, read, run_record, traces

from megatron import torch_profile
from megatron.torch_profile.followers import Idle, followers
from megatron.torch_profile.hooks import other_loops
from megatron.torch_trace.format.undisturbed_iterations import METADATA_NAME


def names(trace: Path) -> list[str]:
    """Of spans, in order."""
    events = [e for e in read(trace)["traceEvents"] if e.get("cat") == "user_annotation"]
    wanted = ("ProfilerStep", "forward", "backward", "optimizer")
    ordered = sorted(events, key=lambda event: float(event["ts"]))
    return [e["name"] for e in ordered if e["name"].startswith(wanted)]


def test_nobody_asks_and_nothing_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    training = Training()
    with torch_profile.attach(training.model):
        training.run(3)
        assert torch_profile.step() is torch_profile.step(), "nothing is made for it"
        assert isinstance(followers.steps, Idle)
    assert list(tmp_path.iterdir()) == []


def test_a_loop_is_recorded_and_trains_as_it_would(tmp_path: Path) -> None:
    plain, training = Training(), Training()
    plain.run(5)
    with torch_profile.attach(
        training.model,
        optimizer=training.optimizer,
        config=config(tmp_path, spans=["phases"], active=2),
        last_iteration=5,
        arguments={"lr": 0.1, "name": "mine"},
        flops_per_iteration=1000,
        tokens_per_iteration=64,
    ):
        training.run(5)
    assert training.losses == plain.losses
    (trace,) = traces(tmp_path)
    assert trace.parent.name == "iter-0000003-0000004"
    microbatches = [
        f"{direction} micro-batch {number}"
        for number in (0, 1)
        for direction in ("forward", "backward")
    ]
    assert names(trace) == [
        *("ProfilerStep#3", *microbatches, "optimizer"),
        *("ProfilerStep#4", *microbatches, "optimizer"),
    ]
    own = read(trace)["torch_profile"]
    assert (own["loop"], own["model_flops_per_iteration"], own["tokens_per_iteration"]) == (
        "pytorch",
        1000,
        64,
    )
    assert own["window"] == {"first": 3, "last": 4}
    record = run_record(tmp_path)
    assert record["arguments"] == {"lr": 0.1, "name": "mine"}
    assert (record["loop"], record["plan"]["last_iteration"]) == ("pytorch", 5)
    assert followers.plan is None
    assert isinstance(followers.steps, Idle)


def test_the_window_closes_where_its_last_iteration_ends(tmp_path: Path) -> None:
    """What runs between two steps, such as evaluation, is in no trace."""
    training = Training()
    torch_profile.attach(training.model, config=config(tmp_path, spans=["phases"], skip_first=0))
    training.run(2)
    recorder: Any = followers.steps
    training.model(torch.ones(2, 4)).sum().backward()
    assert recorder.windows.next is None
    (trace,) = traces(tmp_path)
    assert names(trace).count("forward micro-batch 2") == 0
    assert sum(name.startswith("forward") for name in names(trace)) == 2


def test_iterations_without_the_profiler_are_timed_from_begin_to_end(tmp_path: Path) -> None:
    training = Training()
    with torch_profile.attach(training.model, config=config(tmp_path, skip_first=8)):
        training.run(20)
    (trace,) = traces(tmp_path)
    told = read(trace)["torch_profile"][METADATA_NAME]
    assert [iteration for iteration, _ in told] == [2, 3, 4, 5, 6, 7, 8], "1 compiles, 9 warms up"


def test_windows_are_summarised_as_megatrons_are(tmp_path: Path, said: list[str]) -> None:
    training = Training()
    torch_profile.attach(training.model, config=config(tmp_path, summary="always"))
    training.run(3)
    assert followers.results is not None
    traces(tmp_path)
    followers.results.finish()
    assert [line for line in said if line.startswith("iteration 3")], said


def test_a_resumed_loop_counts_on(tmp_path: Path) -> None:
    training = Training()
    with torch_profile.attach(
        training.model, config=config(tmp_path, iterations=["102"]), first_iteration=101
    ):
        for _ in range(3):
            with torch_profile.step():
                training.step()
    assert [trace.parent.name for trace in traces(tmp_path)] == ["iter-0000102"]


def test_a_step_for_each_micro_batch_is_said_once_and_counts_once(
    tmp_path: Path, warned: list[str]
) -> None:
    training = Training()
    with torch_profile.attach(training.model, config=config(tmp_path)):
        for iteration in (1, 1, 2, 2, 3, 3):
            with torch_profile.step(iteration):
                training.step()
    assert [line for line in warned if "step(" in line] == [
        "step(1) comes when iteration 2 or a later one is due, and is not followed; a step is one "
        "optimizer step, with all its micro-batches"
    ]
    assert [trace.parent.name for trace in traces(tmp_path)] == ["iter-0000003"]


def test_a_step_that_fails_leaves_what_is_recorded(tmp_path: Path, warned: list[str]) -> None:
    training = Training()

    def run_and_fail() -> None:
        wanted = config(tmp_path, active=4, skip_first=0)
        with torch_profile.attach(training.model, config=wanted):
            training.run(3)
            with torch_profile.step():
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_and_fail()
    assert [trace.name for trace in traces(tmp_path)] == ["rank-0.partial.pt.trace.json.gz"]


def test_a_loop_that_catches_a_failed_step_is_recorded_on(tmp_path: Path) -> None:
    training = Training()
    with torch_profile.attach(training.model, config=config(tmp_path, skip_first=3)):
        training.run(2)
        try:
            with torch_profile.step():
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        training.run(3, first=4)
    assert [trace.parent.name for trace in traces(tmp_path)] == ["iter-0000005"]


def test_a_loop_that_attaches_again_begins_another_run(tmp_path: Path) -> None:
    for _ in range(2):
        training = Training()
        torch_profile.attach(training.model, config=config(tmp_path))
        training.run(3)
    attached = other_loops._current
    assert attached is not None
    attached.detach()
    attached.detach()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_window_that_cannot_happen_is_refused_in_the_loops_own_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        torch_profile.attach(None, config=config(tmp_path, active=9), last_iteration=4)
    assert ended.value.code == 2
    assert "(last_iteration=4 of attach())" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("more", "environment", "sentence"),
    [
        (
            {"first_iteration": 0},
            {},
            "attach(first_iteration=0): must be a whole number, 1 or more.",
        ),
        (
            {"last_iteration": 2.5},
            {},
            "attach(last_iteration=2.5): must be a whole number, 1 or more.",
        ),
        (
            {"last_iteration": "9"},
            {},
            "attach(last_iteration='9'): must be a whole number, 1 or more.",
        ),
        (
            {"flops_per_iteration": "9e12"},
            {},
            "attach(flops_per_iteration='9e12'): must be a whole number, 1 or more.",
        ),
        ({"mesh": 3}, {}, "attach(mesh=3): must be torch's DeviceMesh over all ranks."),
        (
            {},
            {"WORLD_SIZE": "8"},
            "attach(): WORLD_SIZE is 8 and torch.distributed is not initialised, so the ranks "
            "cannot agree on one run; call attach() after init_process_group().",
        ),
    ],
)
def test_what_attach_cannot_do_is_one_sentence(
    more: dict[str, Any],
    environment: dict[str, str],
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        torch_profile.attach(None, config=config(tmp_path), **more)
    assert capsys.readouterr().err == f"torch-profile: error: {sentence}\n"


@pytest.mark.parametrize("given", ["3", 3.5, math.nan, [3]], ids=repr)
def test_a_step_that_is_no_whole_number_is_said_once_and_training_goes_on(
    given: Any, tmp_path: Path, warned: list[str]
) -> None:
    with torch_profile.attach(config=config(tmp_path)):
        for _ in range(2):
            with torch_profile.step(given):
                pass
    assert [line for line in warned if line.startswith("step(")] == [
        f"step({given!r}) is no whole number, and is not followed; a step is one optimizer step, "
        "with all its micro-batches"
    ]


@pytest.mark.parametrize("kind", [float, torch.tensor], ids=["float", "tensor"])
def test_steps_may_be_whole_numbers_of_any_kind(kind: Any, tmp_path: Path) -> None:
    with torch_profile.attach(config=config(tmp_path)):
        for iteration in range(1, 5):
            with torch_profile.step(kind(iteration)):
                pass
    (trace,) = traces(tmp_path)
    steps = [name for name in names(trace) if name.startswith("ProfilerStep")]
    assert steps == ["ProfilerStep#3"]


def test_spans_that_have_no_model_say_what_to_give(tmp_path: Path, warned: list[str]) -> None:
    with torch_profile.attach(config=config(tmp_path, spans=["modules"])):
        pass
    assert (
        "rank 0: no module gets a span: attach() was not given the model; write attach(model)"
        in (warned)
    )


def test_no_hook_is_left_on_the_model(tmp_path: Path) -> None:
    training = Training()
    backward = torch.autograd.backward
    with torch_profile.attach(training.model, config=config(tmp_path, spans=["phases", "modules"])):
        training.run(3)
        assert torch.autograd.backward is backward
        assert not any(
            part._forward_hooks or part._forward_pre_hooks for part in training.model.modules()
        )


def test_a_fork_that_ends_is_not_the_end_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training()
    attached = torch_profile.attach(training.model, config=config(tmp_path), last_iteration=5)
    training.run(2)
    with monkeypatch.context() as fork:
        fork.setattr(os, "getpid", lambda: -1)
        attached.detach()
        attached.__exit__(None, None, None)
        assert followers.plan is not None
    attached.detach()
    assert followers.plan is None
