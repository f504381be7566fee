# SPDX-License-Identifier: Apache-2.0
"""Times of passes from what lies between sends and receives, on stages built by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from megatron.torch_trace.analysis.replay.spans.from_transfers import Measured, measure
from megatron.torch_trace.analysis.replay.spans.orders import Shape

PP, DP = 0, 1
Spans = list[tuple[int, int]]


def measured(
    shape: Shape, stage: int, transfers: Spans, *, compute: int = 10_000, end: int = 90
) -> Measured | None:
    """Of a stage whose step is from 1,000 to 1,100, by its transfers in the step, from 0 on."""
    kinds = [
        SimpleNamespace(dimension="pp", collective="send_recv"),
        SimpleNamespace(dimension="dp", collective="send"),
    ]
    # Neither another dimension's sends nor another step's are those of the pipeline here.
    rows = [(PP, 5, *one) for one in transfers] + [(DP, 5, 3, 4), (PP, 6, 120, 130)]
    kind, step, start, stop = (np.array(column) for column in zip(*rows, strict=True))
    pipeline = SimpleNamespace(step=5, start_ns=1_007, end_ns=1_000 + end, compute_ns=compute)
    found = SimpleNamespace(start_ns=1_000, end_ns=1_100)
    rank: Any = SimpleNamespace(
        stage=stage,
        calls=SimpleNamespace(
            kinds=kinds, kind=kind, step=step, start=start + 8_000, end=stop + 8_000
        ),
        result=SimpleNamespace(base_ns=7_000, pipeline=[pipeline]),
        step=lambda number: found,
    )
    return measure(shape, rank, 5)


def told(found: Measured | None) -> tuple[list[list[float]], list[list[float]], float, float]:
    """Forwards and backwards on the CPU, the same on the GPU, head and tail."""
    assert found is not None
    cpu, gpu = (one[:, 0].round(9).tolist() for one in (found.cpu, found.gpu))
    return cpu, gpu, found.head, found.tail


def test_the_first_stage_s_passes_lie_between_its_transfers() -> None:
    """F0 s F1 [s r] B0 r B1; before F0 lies what it takes longer than another forward alone."""
    found = measured(Shape(2, 1, 2), 0, [(20, 22), (40, 45), (62, 70)])
    cpu = [[18, 18], [17, 20]]
    assert told(found) == (cpu, cpu, 2, 10)


def test_the_gpu_computes_as_much_of_a_pass_as_of_all_and_never_more() -> None:
    found = measured(Shape(2, 1, 2), 0, [(20, 22), (40, 45), (62, 70)], compute=73 // 2)
    cpu, gpu, *_ = told(found)
    assert np.array(gpu) == pytest.approx(np.array(cpu) * 36 / 73)


def test_where_nothing_tells_them_apart_a_backward_takes_twice_as_long_as_a_forward() -> None:
    """r [F0 B0] [s r] [F1 B1] s: the last stage turns round between two transfers."""
    found = measured(Shape(2, 1, 2), 1, [(20, 22), (40, 45), (63, 70)])
    assert told(found)[0] == [[6, 6], [12, 12]]
    assert told(found)[2:] == (20, 10)


def test_passes_in_one_block_are_divided_as_those_alone_are() -> None:
    """F0 s F1 [s r] B0 F2 [s r] B1 r B2."""
    found = measured(Shape(2, 1, 3), 0, [(12, 13), (23, 24), (57, 58), (78, 79)], end=99)
    assert told(found) == ([[10, 10, 11], [22, 20, 20]], [[10, 10, 11], [22, 20, 20]], 2, 1)


def test_other_transfers_than_those_of_1f1b_tell_nothing() -> None:
    assert measured(Shape(2, 1, 2), 0, [(20, 22), (40, 45)]) is None
    assert measured(Shape(2, 2, 2), 0, [(20, 22), (40, 45), (62, 70)]) is None
