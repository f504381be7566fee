# SPDX-License-Identifier: Apache-2.0
"""1F1B and interleaved orders, as the papers have them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from megatron.torch_trace.analysis.replay.spans.orders import (
    Shape,
    needed_by,
    order_of,
    plan_of,
    warmup_of,
)


def written(shape: Shape, stage: int) -> str:
    """`F0 F1 B0`; with chunks `F0.0 F0.1`, the chunk behind the point."""
    return " ".join(
        f"{'F' if one.is_forward else 'B'}{one.microbatch}"
        + (f".{one.chunk}" if shape.chunks > 1 else "")
        for one in order_of(shape, stage)
    )


def test_1f1b_begins_with_as_many_forwards_as_stages_follow() -> None:
    shape = Shape(3, 1, 4)
    assert [written(shape, stage) for stage in range(3)] == [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]


def test_fewer_micro_batches_than_stages_are_all_warmup() -> None:
    assert written(Shape(4, 1, 2), 0) == "F0 F1 B0 B1"


def test_interleaved_chunks_take_turns_in_groups_of_as_many_micro_batches_as_stages() -> None:
    shape = Shape(2, 2, 4)
    assert [warmup_of(shape, stage) for stage in range(2)] == [4, 2]
    assert [written(shape, stage) for stage in range(2)] == [
        "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0",
        "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0",
    ]


def test_the_places_are_those_that_megatron_wrote_into_recorded_spans() -> None:
    # tests/data/pp4-interleaved-spans: stage 2 ends with two, stage 3 with four steady forwards.
    shape = Shape(4, 2, 4)
    assert [warmup_of(shape, stage) for stage in range(4)] == [8, 8, 6, 4]


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_every_pass_comes_once_and_after_what_it_waits_for(
    stages: int, chunks: int, groups: int, is_interleaved: bool
) -> None:
    shape = (
        Shape(stages, chunks, groups * stages) if is_interleaved else Shape(stages, 1, groups + 1)
    )
    plan = plan_of(shape)
    assert len(set(plan.passes)) == len(plan.passes)
    assert len(plan.passes) == 2 * shape.stages * shape.chunks * shape.microbatches
    for number, one in enumerate(plan.passes):
        source = needed_by(shape, one)
        assert plan.previous[number] < number
        assert plan.needed[number] < number
        assert (plan.passes[plan.needed[number]] if source else None) == source
        if not one.is_forward:
            assert plan.passes.index(one._replace(is_forward=True)) < number
