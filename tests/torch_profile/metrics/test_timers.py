# SPDX-License-Identifier: Apache-2.0
"""Timers: the right number, once, in every sink, whatever the interval and the generation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from logging_megatron import Follow, Loop

from megatron.torch_profile.metrics.timers import Reading, summarise
from megatron.torch_profile.metrics_config import MetricsConfig
from megatron.torch_profile.publish import sinks

KEY = "timers/forward-backward-time"


def ascending(iteration: int) -> list[float]:
    """Iteration i takes i seconds, so that no two averages are equal."""
    return [float(iteration)]


def average(first: int, last: int) -> float:
    return (first + last) / 2


# (train-iters, log-interval, resumed from) -> logged iteration: iterations covered, of 0.16, whose
# first iteration is logged alone and once more in its interval.
INTERVALS: list[tuple[tuple[int, int, int], dict[int, tuple[int, int]]]] = [
    ((3, 1, 0), {1: (1, 1), 2: (1, 2), 3: (3, 3)}),
    ((12, 5, 0), {1: (1, 1), 5: (1, 5), 10: (6, 10)}),
    ((16, 7, 0), {1: (1, 1), 7: (1, 7), 14: (8, 14)}),
    ((16, 5, 8), {9: (9, 9), 10: (9, 10), 15: (11, 15)}),
]


@pytest.mark.parametrize("generation", ["0.14", "0.15", "0.16"])
@pytest.mark.parametrize(("run", "covered"), INTERVALS)
def test_every_sink_and_the_log_have_the_mean_of_the_iterations_really_covered(
    follow: Follow,
    tmp_path: Path,
    generation: str,
    run: tuple[int, int, int],
    covered: dict[int, tuple[int, int]],
) -> None:
    train_iters, log_interval, resumed = run
    covered = dict(covered)
    loop = follow(
        train_iters,
        log_interval,
        iteration=resumed,
        generation=generation,
        timer_seconds=ascending,
    )
    if generation != "0.16":
        first = covered.pop(resumed + 1)
        if log_interval == 1:
            covered = {1: first, 2: (2, 2), 3: covered[3]}
    expected = {iteration: average(*span) for iteration, span in covered.items()}

    assert {step: values[KEY] for step, values in loop.writer.logged} == expected
    assert loop.writer.scalars[KEY] == expected
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert {line["iteration"]: line[KEY] for line in lines} == expected
    printed = [line["forward-backward"] for line in loop.timers.printed]
    assert printed == [(value, value) for value in expected.values()]


def test_without_us_0_14_prints_nothing_and_writes_a_saw_tooth_which_ours_mends(
    follow: Follow,
) -> None:
    loop = follow(10, 5, generation="0.14", config=MetricsConfig(log_gpu_stats_interval=1.0))
    assert loop.writer.scalars["forward-backward-time"] == {
        i: 1 / ((i - 1) % 5 + 1) for i in range(1, 11)
    }
    assert loop.timers.printed == [{}, {}]

    loop = follow(10, 5, generation="0.14")
    assert loop.writer.scalars["forward-backward-time"] == dict.fromkeys(range(1, 11), 1.0)
    assert loop.timers.printed == [{"forward-backward": (1.0, 1.0)}] * 2


def test_the_slow_rank_is_named_with_its_share(follow: Follow) -> None:
    loop = follow(5, 5, generation="0.15", ranks=2, timer_seconds=lambda iteration: [1.0, 3.0])
    ((step, values),) = loop.writer.logged
    assert step == 5
    assert {key: value for key, value in values.items() if key.startswith("timers/")} == {
        KEY: 3.0,
        f"{KEY}/min": 1.0,
        f"{KEY}/mean": 2.0,
        f"{KEY}/slowest_rank": 1,
        f"{KEY}/imbalance": 1.5,
    }


def test_a_stage_that_does_not_run_a_timer_is_no_minimum() -> None:
    assert summarise(Reading(["a", "unused"], [[0.0, 0.0], [4.0, 0.0], [2.0, 0.0]], 2.0)) == {
        "timers/a-time": 2.0,
        "timers/a-time/min": 1.0,
        "timers/a-time/mean": 1.5,
        "timers/a-time/slowest_rank": 1,
        "timers/a-time/imbalance": 4 / 3,
    }


def test_evaluation_is_logged_by_the_occurrence_and_is_no_part_of_an_iteration(
    follow: Follow,
) -> None:
    loop = follow(4, 2, generation="0.15", loop_options={"eval_interval": 2})
    evaluations = [
        (step, values["timers/evaluate-time"])
        for step, values in loop.writer.logged
        if "timers/evaluate-time" in values
    ]
    assert evaluations == [(2, 1000.0), (4, 1000.0)]
    steps = [values.get("train/step_time_ms") for _, values in loop.writer.logged]
    assert steps == [1250.0, None, 1250.0, None]


def upstreams(loop: Loop) -> Mapping[str, Any]:
    ours = ("timers/", "train/", "gpu/", "memory/", "compile/")
    return {key: v for key, v in loop.writer.scalars.items() if not key.startswith(ours)}


@pytest.mark.parametrize("generation", ["0.15", "0.16"])
def test_no_key_of_upstreams_changes_its_meaning(follow: Follow, generation: str) -> None:
    options: dict[str, Any] = {"generation": generation, "iteration": 3, "timer_seconds": ascending}
    # Metrics that do not look at timers leave Megatron's writing and printing alone.
    without = follow(16, 5, config=MetricsConfig(log_gpu_stats_interval=1.0), **options)
    with_ours = follow(16, 5, **options)
    assert upstreams(with_ours) == upstreams(without)
    assert list(upstreams(with_ours)) == ["forward-backward-time"]


def test_a_training_without_timers_has_only_the_split(follow: Follow) -> None:
    loop = follow(2, 2, generation="0.15", loop_options={"names": ()})
    ((_, values),) = loop.writer.logged
    assert not [key for key in values if key.startswith("timers/")]
    assert values["train/step_time_ms"] == 1250.0


class Full:
    """A sink on a full disk."""

    name = "metrics.jsonl"
    here = True

    def __init__(self) -> None:
        self.asked = 0

    def write(self, iteration: int, values: Mapping[str, float]) -> None:
        self.asked += 1
        raise OSError(28, "No space left on device")


def test_a_sink_that_fails_is_named_once_and_the_others_go_on(
    follow: Follow, capsys: pytest.CaptureFixture[str]
) -> None:
    full = Full()
    kept: list[int] = []

    class Kept:
        name, here = "kept", True

        def write(self, iteration: int, values: Mapping[str, float]) -> None:
            kept.append(iteration)

    loop = follow(6, 2, generation="0.15", outputs=[full, Kept()])
    assert (full.asked, kept) == (1, [2, 4, 6])
    assert capsys.readouterr().out == (
        "[torch-profile metrics-failed] warning: training goes on without metrics in "
        "metrics.jsonl: OSError: [Errno 28] No space left on device\n"
    )
    assert len(loop.timers.printed) == 3


def test_values_that_are_no_numbers_reach_no_sink(tmp_path: Path) -> None:
    out = sinks.Sinks([sinks.JsonLines(tmp_path / "m")])
    out.write(1, {"a": float("nan"), "b": 2.0, "c": float("inf")})
    out.write(2, {"a": float("nan")})
    assert (tmp_path / "m").read_text() == '{"iteration": 1, "b": 2.0}\n'
