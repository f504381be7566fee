# SPDX-License-Identifier: Apache-2.0
"""Simulated pipelines against answers that can be had by hand, to the nanosecond."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_builder import pipeline

from megatron.torch_trace.analysis.replay.spans.orders import Pass, Shape
from megatron.torch_trace.analysis.replay.spans.passes import Passes
from megatron.torch_trace.analysis.replay.spans.simulation import (
    Simulation,
    pass_slack,
    path_of,
    simulate,
)


def slack_of(simulation: Simulation) -> np.ndarray:
    """By lane and stage: by how much one pass may be later without the iteration ending later."""
    free, plan = pass_slack(simulation), simulation.plan
    stage = np.array([one.stage for one in plan.passes])
    return np.stack(
        [free[stage == number].min(axis=0) for number in range(simulation.passes.shape.stages)],
        axis=1,
    )


def test_the_bubble_of_1f1b_is_that_of_the_paper() -> None:
    done = simulate(pipeline(Shape(4, 1, 8), forward=1_000, backward=2_000))
    assert done.iteration_ns == 8 * 3_000 + 3 * 3_000


def test_interleaving_divides_the_bubble_by_the_virtual_stages() -> None:
    for chunks in (2, 4):
        done = simulate(pipeline(Shape(4, chunks, 8), forward=4_000, backward=8_000))
        assert done.iteration_ns == 8 * 12_000 + 3 * 12_000 // chunks


def test_a_gpu_that_takes_longer_than_the_cpu_has_the_bubble_though_the_cpu_does_not_wait() -> None:
    passes = pipeline(Shape(4, 1, 8), forward=1_000, backward=2_000, gpu=1, is_blocking=False)
    assert simulate(passes).iteration_ns == 8 * 3_000 + 3 * 3_000


def test_a_cpu_that_does_not_wait_goes_on_while_the_gpu_waits() -> None:
    # The GPU has nothing to do but what the CPU launches: no bubble on the way.
    passes = pipeline(Shape(4, 1, 8), forward=1_000, backward=2_000, is_blocking=False)
    assert simulate(passes).iteration_ns == 8 * 3_000
    # That it waited would be 37.5 % more.
    assert simulate(replace(passes, is_blocking=True)).iteration_ns == 33_000


def on_stage(done: Simulation, stage: int) -> list[tuple[str, float, float]]:
    """Each pass of a stage, when its CPU and when its GPU is done."""
    found = []
    for one, cpu, gpu in zip(done.plan.passes, done.cpu[:, 0], done.gpu[:, 0], strict=True):
        if one.stage == stage:
            found.append((f"{'FB'[not one.is_forward]}{one.microbatch}", float(cpu), float(gpu)))
    return found


def test_a_cpu_that_waits_at_sends_and_receives_goes_on_when_the_gpu_is_there() -> None:
    passes = pipeline(Shape(2, 1, 2), forward=1_000, backward=2_000, gpu=3)
    waiting, ahead = simulate(passes), simulate(replace(passes, is_blocking=False))
    assert on_stage(waiting, 0) == [
        ("F0", 1_000, 3_000), ("F1", 4_000, 6_000), ("B0", 14_000, 18_000), ("B1", 23_000, 27_000),
    ]  # fmt: skip
    assert on_stage(waiting, 1) == [
        ("F0", 4_000, 6_000), ("B0", 6_000, 12_000), ("F1", 13_000, 15_000), ("B1", 15_000, 21_000),
    ]  # fmt: skip
    # The GPU is through at the same times where its CPU never waits.
    assert on_stage(ahead, 0) == [
        ("F0", 1_000, 3_000), ("F1", 2_000, 6_000), ("B0", 4_000, 18_000), ("B1", 6_000, 27_000),
    ]  # fmt: skip
    assert on_stage(ahead, 1) == [
        ("F0", 1_000, 6_000), ("B0", 3_000, 12_000), ("F1", 4_000, 15_000), ("B1", 6_000, 21_000),
    ]  # fmt: skip


def test_nothing_is_sent_at_the_ends_of_the_pipeline() -> None:
    done = simulate(pipeline(Shape(3, 1, 4), forward=1_000, backward=2_000))
    written = ["", "", ""]
    for one, waits in zip(done.plan.passes, done.waits, strict=True):
        name = f"{'FB'[not one.is_forward]}{one.microbatch}"
        written[one.stage] += f"|{name}" if waits else f" {name}"
    assert written == [
        " F0|F1|F2|B0 F3|B1|B2|B3",
        " F0|F1|B0|F2|B1|F3|B2|B3",
        " F0 B0|F1 B1|F2 B2|F3 B3",
    ]


def test_head_tail_and_transfers_are_part_of_the_iteration() -> None:
    passes = pipeline(
        Shape(2, 1, 1), forward=1_000, backward=2_000, transfer=50, head=100, tail=700
    )
    assert simulate(passes).iteration_ns == 100 + 1_000 + 50 + 1_000 + 2_000 + 50 + 2_000 + 700


def test_copies_of_the_model_meet_at_the_end() -> None:
    passes = pipeline(Shape(2, 1, 2), forward=1_000, backward=2_000, copies=3, tail=500)
    passes.cpu[1] *= 2
    done = simulate(passes)
    assert done.iteration_ns == 2 * 9_000 + 500
    assert slack_of(done).tolist() == [[9_000, 9_000], [0, 0], [9_000, 9_000]]


def test_slack_is_how_much_longer_one_pass_may_take() -> None:
    passes = pipeline(Shape(2, 1, 2), forward=1_000, backward=2_000)
    passes.cpu[0, 1] = [[[500, 500]], [[1_000, 1_000]]]
    before = simulate(passes)
    slack = slack_of(before)[0]
    assert slack[0] == 0
    # Stage 0: F0 F1 B0 B1; stage 1: F0 B0 F1 B1, each half as long, so B0 may come 1,500 later.
    assert before.iteration_ns == 1_000 + 1_500 + 2_000 + 2_000
    assert slack[1] == 0


def test_the_path_of_1f1b_runs_over_the_last_stage_and_adds_up() -> None:
    passes = pipeline(Shape(3, 1, 4), forward=1_000, backward=2_000, transfer=10, head=7, tail=9)
    done = simulate(passes)
    path = path_of(done, 0)
    assert sum(piece.time for piece in path) == done.iteration_ns
    assert path[0].kind == "start"
    assert path[0].time == 7
    assert path[1].one == Pass(0, True, 0, 0)
    assert path[-1].kind == "end"
    assert path[-1].time == 9
    assert {piece.kind for piece in path[1:-1]} == {"cpu", "transfer"}


@st.composite
def pipelines(draw: st.DrawFn) -> Passes:
    stages, chunks = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    microbatches = stages * draw(st.integers(1, 3))
    shape = Shape(stages, chunks, microbatches)
    passes = pipeline(
        shape,
        forward=1,
        backward=1,
        copies=draw(st.integers(1, 2)),
        is_blocking=draw(st.booleans()),
        transfer=draw(st.integers(0, 20)),
        head=draw(st.integers(0, 50)),
        tail=draw(st.integers(0, 50)),
    )
    random = np.random.default_rng(draw(st.integers(0, 1 << 20)))
    cpu = random.integers(0, 100, passes.cpu.shape).astype(float)
    gpu = random.integers(0, 100, passes.cpu.shape).astype(float)
    return replace(passes, cpu=cpu, gpu=gpu)


@settings(deadline=None, max_examples=60)
@given(pipelines())
def test_the_path_adds_up_and_the_slack_is_exact(passes: Passes) -> None:
    done = simulate(passes)
    ends = done.ends()
    lane = int(ends.argmax())
    assert sum(piece.time for piece in path_of(done, lane)) == pytest.approx(done.steps[0])
    slack = slack_of(done)
    assert (slack >= 0).all()
    assert slack[lane].min() == 0
    # No pass of a stage delays the iteration that takes longer by less than the stage's slack.
    for (copy, stage), free in np.ndenumerate(slack):
        longer = passes.cpu.copy()
        longer[copy, stage, 0, 0, 0] += free
        assert simulate(replace(passes, cpu=longer)).steps[0] == done.steps[0]


@settings(deadline=None, max_examples=30)
@given(pipelines(), st.integers(0, 1 << 20))
def test_no_pass_that_gets_shorter_makes_the_iteration_longer(passes: Passes, seed: int) -> None:
    random = np.random.default_rng(seed)
    shorter = replace(passes, cpu=passes.cpu * random.random(passes.cpu.shape))
    assert simulate(shorter).steps[0] <= simulate(passes).steps[0]
