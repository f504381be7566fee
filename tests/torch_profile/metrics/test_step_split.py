# SPDX-License-Identifier: Apache-2.0
"""The split of the step time, on a clock that the test moves, and what failure does not change."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from logging_megatron import Follow, clock

from megatron.torch_profile.followers import followers
from megatron.torch_profile.metrics import across_ranks, data_iterators, lifetime
from megatron.torch_profile.metrics.step_times import ProfiledIterations, StepClock, StepSplit, line
from megatron.torch_profile.plan.schedule import Window


def split(values: dict[str, float]) -> dict[str, float]:
    return {key: value for key, value in values.items() if key.startswith("train/")}


def test_an_interval_is_split_into_waiting_for_data_and_the_rest(follow: Follow) -> None:
    loop = follow(
        10,
        5,
        generation="0.15",
        gpus=2,
        count_flops=lambda: 5e12,
        peak_tflops=10.0,
        loop_options={"model_seconds": lambda iteration: 1.0 if iteration <= 5 else 0.75},
    )
    assert [(step, split(values)) for step, values in loop.writer.logged] == [
        (
            5,
            {
                "train/profiled_iterations": 0,
                "train/step_time_ms": 1250.0,
                "train/data_time_ms": 250.0,
                "train/model_time_ms": 1000.0,
                "train/data_time_pct": 20.0,
                "train/samples_per_s": 3.2,
                "train/tokens_per_s": 320.0,
                "train/tflops_per_gpu": 2.0,
                "train/mfu_pct": 20.0,
            },
        ),
        (
            10,
            {
                "train/profiled_iterations": 0,
                "train/step_time_ms": 1000.0,
                "train/data_time_ms": 250.0,
                "train/model_time_ms": 750.0,
                "train/data_time_pct": 25.0,
                "train/samples_per_s": 4.0,
                "train/tokens_per_s": 400.0,
                "train/tflops_per_gpu": 2.5,
                "train/mfu_pct": 25.0,
            },
        ),
    ]
    assert loop.lines == [
        " iteration        5 | loss | data time (ms): 250.0 (20.0 %) | model time (ms): 1000.0 |"
        " tokens/s: 320 |",
        " iteration       10 | loss | data time (ms): 250.0 (25.0 %) | model time (ms): 750.0 |"
        " tokens/s: 400 |",
    ]


def test_profiled_iterations_are_marked_and_in_no_average(follow: Follow) -> None:
    def slow_where_profiled(iteration: int) -> float:
        return 100.0 if 3 <= iteration <= 5 else 1.0

    loop = follow(
        12,
        6,
        generation="0.15",
        windows=[Window(4, 4, warmup=1), Window(8, 11, warmup=1)],
        loop_options={"model_seconds": slow_where_profiled},
    )
    values = [split(values) for _, values in loop.writer.logged]
    assert [one["train/profiled_iterations"] for one in values] == [3, 6]
    assert values[0]["train/step_time_ms"] == 1250.0
    assert values[0]["train/samples_per_s"] == 3.2
    assert values[1] == {"train/profiled_iterations": 6}, "nothing is left to average"
    assert loop.lines[1] == " iteration       12 | loss | profiled iterations: 6 |"


def test_warm_up_and_the_iteration_that_stops_the_profiler_count_as_profiled() -> None:
    profiled = ProfiledIterations(iter([Window(3, 4, warmup=1), Window(9, 9, warmup=0)]))
    assert [i for i in range(1, 13) if i in profiled] == [2, 3, 4, 5, 9, 10]


def test_a_rank_that_reads_no_data_leaves_the_wait_to_the_one_that_does() -> None:
    nothing = StepSplit(
        iterations=2,
        profiled=0,
        seconds=3.0,
        data_seconds=math.nan,
        samples=6,
        sequence_length=10,
        flops=None,
        gpus=2,
        peak_tflops=None,
    ).values()
    assert nothing == {
        "train/profiled_iterations": 0,
        "train/step_time_ms": 1500.0,
        "train/samples_per_s": 2.0,
        "train/tokens_per_s": 20.0,
    }
    assert line(nothing) == " tokens/s: 20 |"
    assert across_ranks.largest([math.nan, 2.0, 1.0]) == 2.0
    assert math.isnan(across_ranks.largest([math.nan]))


def test_the_spread_of_a_quantity_names_the_ranks_of_its_extremes() -> None:
    assert across_ranks.spread("gpu/power_w", [300.0, math.nan, 100.0, 200.0]) == {
        "gpu/power_w": 200.0,
        "gpu/power_w/min": 100.0,
        "gpu/power_w/max": 300.0,
        "gpu/power_w/min_rank": 2,
        "gpu/power_w/max_rank": 0,
    }
    assert across_ranks.spread("gpu/power_w", [math.nan]) == {}


class Broken(StepClock):
    """Fails in its third iteration."""

    ended = 0

    def end_step(self, *, profiled: bool) -> None:
        self.ended += 1
        if self.ended == 3:
            raise RuntimeError("the clock stopped")
        super().end_step(profiled=profiled)


def test_a_rank_that_fails_says_so_once_and_still_takes_part_in_every_gather(
    follow: Follow, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gathered: list[list[float]] = []
    original: Callable[[Any], Any] = across_ranks.gather

    def gather(row: list[float]) -> list[list[float]]:
        gathered.append(row)
        return original(row)

    monkeypatch.setattr(across_ranks, "gather", gather)
    follow(6, 2, generation="0.15")
    healthy, gathered = gathered, []
    capsys.readouterr()

    loop = follow(6, 2, generation="0.15", clock=Broken(clock), rank=1, gpus=2)
    assert len(gathered) == len(healthy) == 3
    assert [len(row) for row in gathered] == [len(row) for row in healthy]
    assert [math.isnan(row[0]) for row in gathered] == [False, True, True]
    assert [step for step, _ in loop.writer.logged] == [2]
    assert len(loop.timers.printed) == 3, "Megatron's own log goes on"
    assert capsys.readouterr().out == (
        "[torch-profile metrics-failed] warning: rank 1: training goes on without metrics: "
        "RuntimeError: the clock stopped\n"
    )


def test_a_backend_that_cannot_gather_is_named_once_and_training_goes_on(
    follow: Follow, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = 0

    def gather(row: list[float]) -> list[list[float]]:
        nonlocal asked
        asked += 1
        raise RuntimeError("no such collective")

    monkeypatch.setattr(across_ranks, "gather", gather)
    loop = follow(6, 2, generation="0.15")
    assert (asked, loop.writer.logged, len(loop.timers.printed)) == (1, [], 3)
    assert capsys.readouterr().out == (
        "[torch-profile metrics-failed] warning: rank 0: training goes on without metrics: "
        "RuntimeError: no such collective\n"
    )


def train(model: Any, train_data_iterator: Any, config: Any = None) -> Any:
    iterators = (
        train_data_iterator if isinstance(train_data_iterator, list) else [train_data_iterator]
    )
    return [next(iter(one)) for one in iterators if one is not None]


@pytest.mark.parametrize(
    ("iterators", "batches", "asked"),
    [
        (lambda: iter("ab"), ["a"], 1),
        (lambda: [iter("ab"), None, iter("cd")], ["a", "c"], 2),
        (lambda: None, [], 0),
    ],
)
def test_before_0_10_the_iterator_that_train_is_handed_tells_when_it_is_asked(
    iterators: Callable[[], Any],
    batches: list[str],
    asked: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[Any] = []

    def next_batch(wrapped: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        waits.append(args)
        return wrapped(*args, **kwargs)

    monkeypatch.setattr(data_iterators, "find_spec", lambda name: None)
    args, kwargs = data_iterators.with_timed_data(
        train, ("model",), {"train_data_iterator": iterators()}, next_batch
    )
    assert train(*args, **kwargs) == batches
    assert len(waits) == asked

    monkeypatch.setattr(data_iterators, "find_spec", lambda name: "there")
    given = ("model", object())
    assert data_iterators.with_timed_data(train, given, {}, next_batch) == (given, {})


def test_where_the_data_cannot_be_followed_training_gets_its_own_arguments_and_one_line_says_so(
    warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise TypeError("no iterator")

    monkeypatch.setattr(data_iterators, "with_timed_data", fails)
    monkeypatch.setattr(followers, "metrics", SimpleNamespace(next_batch=None))
    given = ((1, 2), {"three": 3})
    assert lifetime.with_timed_data(print, *given) == given
    assert warned == ["the wait for data is unknown: TypeError: no iterator"]
