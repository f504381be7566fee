# SPDX-License-Identifier: Apache-2.0
"""A step whose launches the GPU waits for: the finding, and the time that the GPU works."""

from __future__ import annotations

import pytest

from megatron.torch_profile.component.component import Component
from megatron.torch_profile.component.config import Compile
from megatron.torch_profile.component.findings import of_result
from megatron.torch_profile.component.results import Measured, Result
from megatron.torch_profile.component.step import Step
from megatron.torch_profile.component.variants import Case
from megatron.torch_profile.component.waterfall import Piece, Waterfall

KERNELS = Waterfall(True, (Piece("a", 0, 8_000), Piece("b", 4_000, 8_000), Piece("c", 50_000, 20)))
"""12.02 us of work, with a gap in which nothing runs."""


def launch_bound(result: Result) -> list[str]:
    step = Step(Component(lambda: None, ()), result.case, "cpu")
    found = of_result(result, step).findings
    return [one.sentence for one in found if one.code == "launch_bound"]


def result(microseconds: int, queued: float | None, compiled: Compile | None = None) -> Result:
    times = tuple([1000 * microseconds] * 5)
    case = Case("", (), "norm", {}, {}, "bfloat16", "forward", compiled, autocast=None, cast=None)
    return Result(case, (Measured(0, times, None, queued),), waterfall=KERNELS)


def test_work_at_the_same_time_counts_once_and_a_gap_not_at_all() -> None:
    assert KERNELS.busy_ns == 12_020


def test_a_gpu_that_waits_for_launches_is_a_finding_with_both_times() -> None:
    assert launch_bound(result(100, 15_000.0)) == [
        "The GPU works 12 us of the 100 us that a step takes; for the rest (88 %) it waits for "
        "the CPU's calls. With its calls queued beforehand a step takes 15 us. The time of this "
        "step is the CPU's: CUDA graphs (`compile: reduce-overhead`), fewer kernels or larger "
        "inputs would help."
    ]


def test_a_step_that_waits_for_the_gpu_itself_has_no_queue_to_speak_of() -> None:
    (said,) = launch_bound(result(100, 99_000.0))
    assert "queued" not in said


def test_cuda_graphs_are_not_recommended_to_those_who_have_them() -> None:
    (said,) = launch_bound(result(100, None, Compile(mode="reduce-overhead")))
    assert said.endswith("The time of this step is the CPU's: larger inputs fill the GPU better.")


@pytest.mark.parametrize("microseconds", [12, 15])
def test_a_busy_gpu_is_no_finding(microseconds: int) -> None:
    assert launch_bound(result(microseconds, 12_500.0)) == []
