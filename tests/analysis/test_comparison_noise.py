# SPDX-License-Identifier: Apache-2.0
"""`compare`: which kernels are the same, and which differences are more than noise."""

from __future__ import annotations

from pathlib import Path

import pytest
from compared_windows import comparison, run, window

from megatron.torch_trace.analysis.compare.kernels import alike, matched_names
from megatron.torch_trace.analysis.compare.statistics import (
    Difference,
    by_rank,
    correct,
    critical_t,
    independent,
    paired,
    two_sided_p,
)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("void f<at::{lambda()#1}::op() const::{lambda()#12}>(int)",
         "void f<at::{lambda()#1}::op() const::{lambda()#11}>(int)"),
        ("k<{lambda(int, (x)(y))#1}>", "k<{lambda(int, (x)(y))#2}>"),
        ("ncclDevKernel_AllReduce(ncclDevKernelArgsStorage<4096ul>)",
         "ncclDevKernel_AllReduce(ncclDevKernelArgsStorage<4096u>)"),
        ("at::(anonymous namespace)::f(int, int)", "at::<unnamed>::f(int,int)"),
        ("triton_poi_fused_add_mul_3", "triton_poi_fused_add_mul_12"),
        ("triton_red_fused_sum_0_0d1d2d3e", "triton_red_fused_sum_4_0d1d2de"),
    ],
)  # fmt: skip
def test_what_another_build_numbers_otherwise_is_the_same_kernel(one: str, other: str) -> None:
    assert alike(one) == alike(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("gemm_128x64_nn", "gemm_128x128_nn"),
        ("void f<float, 4>(int)", "void f<float, 8>(int)"),
        ("triton_poi_fused_add_0", "triton_poi_fused_mul_0"),
    ],
)
def test_another_kernel_stays_another(one: str, other: str) -> None:
    assert alike(one) != alike(other)


def test_alike_names_are_one_row_only_where_exact_ones_do_not_match() -> None:
    exact = ["triton_poi_fused_add_0", "triton_poi_fused_add_1"]
    assert set(matched_names(exact, exact).values()) == set(exact)
    shifted = ["triton_poi_fused_add_1", "triton_poi_fused_add_2"]
    assert set(matched_names(exact, shifted).values()) == {"triton_poi_fused_add_0"}
    assert set(matched_names(exact, []).values()) == set(exact)


def test_a_steady_change_is_more_than_noise_and_a_wavering_one_is_not(tmp_path: Path) -> None:
    a = window(tmp_path / "a", (3, 4, 3, 4))
    steady = comparison(a, window(tmp_path / "b", (6, 7, 6, 7)))
    assert steady.breakdown["compute"].significant is True
    wavering = comparison(a, window(tmp_path / "c", (1, 7, 1, 7)))
    assert wavering.breakdown["compute"].significant is False
    assert steady.breakdown["compute"].over == "steps"


def test_one_step_on_each_side_says_nothing_about_noise(tmp_path: Path) -> None:
    a, b = window(tmp_path / "a", (4,)), window(tmp_path / "b", (6,), length_ms=12)
    assert comparison(a, b).iteration.significant is None
    assert "one step on each side cannot show whether this is noise" in " ".join(
        run(a, b).output.split()
    )


def test_ts_are_those_of_the_tables() -> None:
    assert critical_t(1) == pytest.approx(12.7062, abs=1e-4)
    assert critical_t(2) == pytest.approx(4.3027, abs=1e-4)
    assert critical_t(10) == pytest.approx(2.2281, abs=1e-4)
    assert critical_t(1000) == pytest.approx(1.9623, abs=1e-4)
    assert two_sided_p(2.015, 5) == pytest.approx(0.1, abs=1e-4)
    assert two_sided_p(0, 3) == 1


def test_welch_student_and_paired_give_what_a_calculator_gives() -> None:
    # Welch: means 2 and 16/3, variances 1 and 7/3, t 3.1623, 3.448 degrees of freedom.
    welch = independent([1, 2, 3], [4, 5, 7], "steps")
    assert welch.p == pytest.approx(0.0419, abs=1e-4)
    # One sample against two: their variance 2, t = 7 / sqrt(2 * 1.5) with one degree of freedom.
    student = independent([1, 3], [9], "steps")
    assert student.p == pytest.approx(0.1540, abs=1e-3)
    # Differences 1, 2, 3: t = 2 / sqrt(1 / 3) with two degrees of freedom.
    assert paired({0: 1, 1: 10, 2: 5}, {0: 2, 1: 12, 2: 8}).p == pytest.approx(0.0742, abs=1e-4)


def test_the_same_ranks_are_compared_each_with_itself() -> None:
    before = {0: 1.0, 1: 100.0, 2: 10.0}
    after = {rank: value + 1 + rank / 100 for rank, value in before.items()}
    assert by_rank(before, after).significant is True
    assert by_rank(before, after).over == "ranks, paired"
    other_ranks = {rank + 3: value for rank, value in after.items()}
    assert by_rank(before, other_ranks).significant is False


def test_many_rows_make_each_harder_to_believe() -> None:
    rows = [Difference(1, 2, p=p) for p in (0.01, 0.04, 0.03)]
    assert [row.p for row in correct([*rows, Difference(1, None)])] == [0.03, 0.06, 0.06, None]


def test_what_stays_exactly_the_same_is_no_change(tmp_path: Path) -> None:
    a = window(tmp_path / "a", (4, 4))
    found = comparison(a, a)
    assert found.iteration.p == 1
    assert found.configuration.changes == ()
    assert found.appeared == found.vanished == ()
    assert "An iteration takes as long in B as in A" in run(a, a).output
