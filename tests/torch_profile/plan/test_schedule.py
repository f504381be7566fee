# SPDX-License-Identifier: Apache-2.0
"""Windows of iterations, compared with torch.profiler.schedule itself."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import ProfilerAction

from megatron.torch_profile.config import TorchProfileConfig
from megatron.torch_profile.plan import schedule
from megatron.torch_profile.plan.schedule import Span, Window
from megatron.torch_trace.errors import UsageError


def windows(span: Span, **flags: Any) -> list[tuple[int, int, int]]:
    config = TorchProfileConfig(**flags)
    schedule.check(config)
    made = schedule.make(config, span, why_last=f"--train-iters {span.last}")
    return [(w.first, w.last, w.warmup) for w in made]


def actions(span: Span, config: TorchProfileConfig) -> list[ProfilerAction]:
    """What our windows say about every iteration of a span, in torch's words."""
    said = dict.fromkeys(range(span.first, span.last + 1), ProfilerAction.NONE)
    for window in schedule.Schedule(config, span):
        for iteration in range(window.first - window.warmup, window.first):
            said[iteration] = ProfilerAction.WARMUP
        for iteration in range(window.first, window.last):
            said[iteration] = ProfilerAction.RECORD
        said[window.last] = ProfilerAction.RECORD_AND_SAVE
    return list(said.values())


@pytest.mark.filterwarnings("ignore:Profiler won't be using warmup")
@given(
    wait=st.integers(0, 4),
    warmup=st.integers(0, 4),
    active=st.integers(1, 4),
    repeat=st.integers(0, 4),
    skip_first=st.integers(0, 6),
    skip_first_wait=st.booleans(),
    first=st.integers(1, 5000),
)
def test_cycles_are_those_of_torch(
    wait: int,
    warmup: int,
    active: int,
    repeat: int,
    skip_first: int,
    skip_first_wait: bool,
    first: int,
) -> None:
    flags = {
        "wait": wait,
        "warmup": warmup,
        "active": active,
        "repeat": repeat,
        "skip_first": skip_first,
    }
    # Long enough for every cycle that is asked for, or for five of an endless schedule.
    cycles = repeat or 5
    length = skip_first + cycles * (wait + warmup + active)
    # An endless schedule ends with a whole cycle: ours leaves out what torch would cut short.
    length -= wait if skip_first_wait else 0
    theirs = torch.profiler.schedule(**flags, skip_first_wait=int(skip_first_wait))

    ours = actions(
        Span(first, first + length - 1),
        TorchProfileConfig(**flags, skip_first_wait=skip_first_wait),
    )

    assert ours == [theirs(step) for step in range(length)]


def test_this_torch_knows_skip_first_wait() -> None:
    assert "skip_first_wait" in inspect.signature(torch.profiler.schedule).parameters


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, [(3, 3, 1)]),
        ({"skip_first": 0, "warmup": 0}, [(1, 1, 0)]),
        ({"active": 3}, [(3, 5, 1)]),
        ({"active": 2, "repeat": 2, "wait": 1}, [(4, 5, 1), (8, 9, 1)]),
        ({"wait": 5, "repeat": 2}, [(8, 8, 1), (15, 15, 1)]),
        ({"wait": 5, "repeat": 2, "skip_first_wait": True}, [(3, 3, 1), (10, 10, 1)]),
        ({"frequency": 10, "active": 2, "repeat": 2}, [(10, 11, 1), (20, 21, 1)]),
        ({"frequency": 2, "repeat": 3}, [(3, 3, 1), (5, 5, 1), (7, 7, 1)]),
        ({"repeat": 0, "wait": 8, "active": 4}, [(11, 14, 1), (24, 27, 1)]),
    ],
)
def test_a_fresh_start_of_30_iterations_records(
    flags: dict[str, Any], expected: list[tuple[int, int, int]]
) -> None:
    assert windows(Span(1, 30), **flags) == expected


def test_cycles_count_from_the_first_iteration_after_a_resume() -> None:
    assert windows(Span(1001, 2000)) == [(1003, 1003, 1)]


def test_an_endless_schedule_of_a_long_training_costs_no_memory() -> None:
    endless = schedule.Schedule(TorchProfileConfig(repeat=0), Span(1, 10**12))
    iterator = iter(endless)
    assert [next(iterator) for _ in range(2)] == [Window(3, 3, 1), Window(5, 5, 1)]


@pytest.mark.parametrize(
    ("words", "span", "expected"),
    [
        (["5"], Span(1, 10), [(5, 5, 1)]),
        (["8-9", "3-4"], Span(1, 10), [(3, 4, 1), (8, 9, 1)]),
        (["3-4", "5-6"], Span(1, 10), [(3, 4, 1), (5, 6, 0)]),
        (["3,5-6"], Span(1, 10), [(3, 3, 1), (5, 6, 1)]),
        (["1-2"], Span(1, 10), [(1, 2, 0)]),
        (["3-4", "100-101"], Span(51, 200), [(100, 101, 1)]),
        (["101-102"], Span(101, 200), [(101, 102, 0)]),
    ],
)
def test_absolute_iterations(
    words: list[str], span: Span, expected: list[tuple[int, int, int]]
) -> None:
    assert windows(span, iterations=words) == expected


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"active": 0}, "--torch-profile-active 0: must be 1 or more."),
        ({"wait": -1}, "--torch-profile-wait -1: must be 0 or more."),
        ({"warmup": -2}, "--torch-profile-warmup -2: must be 0 or more."),
        ({"repeat": -1}, "--torch-profile-repeat -1: must be 0 or more."),
        ({"skip_first": -1}, "--torch-profile-skip-first -1: must be 0 or more."),
        (
            {"frequency": 2, "active": 2},
            "--torch-profile-frequency 2: a cycle holds 1 warm-up iteration and 2 recorded "
            "iterations, so it must be 3 or more.",
        ),
        (
            {"frequency": 10, "wait": 3},
            "--torch-profile-frequency 10 and --torch-profile-wait 3: the wait follows from the "
            "frequency; give only one of the two.",
        ),
        (
            {"active": 40},
            "--torch-profile-active 40: the window of iterations 3-42 cannot happen, because this "
            "process runs iterations 1 to 30 (--train-iters 30); --torch-profile-active 28 fits.",
        ),
        (
            {"skip_first": 100},
            "--torch-profile-skip-first 100: the window of iteration 102 cannot happen, because "
            "this process runs iterations 1 to 30 (--train-iters 30); --torch-profile-skip-first "
            "28 fits.",
        ),
        (
            {"skip_first": 20, "warmup": 5, "active": 40, "repeat": 3},
            "--torch-profile-active 40: the window of iterations 26-65 cannot happen, because this "
            "process runs iterations 1 to 30 (--train-iters 30); --torch-profile-active 5 fits.",
        ),
        (
            {"skip_first": 30, "warmup": 30, "active": 20},
            "--torch-profile-skip-first 30: the window of iterations 61-80 cannot happen, because "
            "this process runs iterations 1 to 30 (--train-iters 30); lower "
            "--torch-profile-skip-first, --torch-profile-wait, --torch-profile-warmup or "
            "--torch-profile-active, which need 80 iterations, and there are 30.",
        ),
        (
            {"frequency": 100},
            "--torch-profile-frequency 100: the window of iteration 101 cannot happen, because "
            "this process runs iterations 1 to 30 (--train-iters 30); --torch-profile-frequency 29 "
            "fits.",
        ),
        (
            {"wait": 10, "repeat": 5},
            "--torch-profile-repeat 5: the window of iteration 61 cannot happen, because this "
            "process runs iterations 1 to 30 (--train-iters 30); --torch-profile-repeat 2 fits.",
        ),
        (
            {"repeat": 0, "wait": 100},
            "--torch-profile-wait 100: the window of iteration 103 cannot happen, because this "
            "process runs iterations 1 to 30 (--train-iters 30); --torch-profile-wait 27 fits.",
        ),
        (
            {"iterations": ["5-3"]},
            "--torch-profile-iterations 5-3: the range is empty; write 3-5.",
        ),
        (
            {"iterations": ["0-3"]},
            "--torch-profile-iterations 0-3: iterations are numbered from 1.",
        ),
        (
            {"iterations": ["a"]},
            "--torch-profile-iterations a: write a range such as 100-102, or one iteration.",
        ),
        (
            {"iterations": ["3-5", "5-6"]},
            "--torch-profile-iterations: 3-5 and 5-6 overlap; write them as one range.",
        ),
        (
            {"iterations": ["29-31"]},
            "--torch-profile-iterations 29-31: this process runs iterations 1 to 30 "
            "(--train-iters 30); choose among these.",
        ),
        (
            {"iterations": ["3"], "repeat": 2},
            "--torch-profile-iterations and --torch-profile-repeat: one says which iterations to "
            "record, the other counts cycles; give only one of the two.",
        ),
    ],
)
def test_a_mistake_is_one_sentence(flags: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as error:
        windows(Span(1, 30), **flags)
    assert str(error.value) == sentence
