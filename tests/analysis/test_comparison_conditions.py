# SPDX-License-Identifier: Apache-2.0
"""`compare --fail-if`: conditions that hold, fail or cannot be judged."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from compared_windows import MS, comparison, run, window
from trace_builder import GEMM, TraceBuilder

from megatron.torch_trace.analysis.compare.comparison import Comparison, Lateness
from megatron.torch_trace.analysis.compare.conditions import judge, parse
from megatron.torch_trace.analysis.compare.statistics import Difference
from megatron.torch_trace.analysis.compare.tables import WorkDifference
from megatron.torch_trace.errors import TorchTraceError, UsageError


@pytest.fixture(scope="module")
def longer_gemm(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """The kernel takes 6 ms instead of 4 in an iteration of 10."""
    folder = tmp_path_factory.mktemp("longer")
    return comparison(window(folder / "a", (4,)), window(folder / "b", (6,)))


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("compute > +49%", True),
        ("compute > 50%", False),
        ("compute >= 50 %", True),
        ("compute > +1.9ms", True),
        ("compute > +19pp", True),
        ("compute > +21pp", False),
        ("idle < -10%", True),
        ("idle > +5%", False),
        ("iteration > 0us", False),
        ("iteration <= 0s", True),
        ("dp > 0ms", False),
        ("tp > 0%", False),
        ("kernels > 30%", True),
        ("kernel:nvjet > 40%", True),
        ("family:gemm > 40%", True),
        ("module:decoder > 0%", False),
        ("straggler > 1ms", False),
    ],
)
def test_conditions(longer_gemm: Comparison, condition: str, holds: bool) -> None:
    assert judge(parse(condition), longer_gemm).holds is holds


def work(name: str, before: float, after: float) -> WorkDifference:
    return WorkDifference(name, "", Difference(1, 1), Difference(before, after))


@pytest.mark.parametrize(
    ("condition", "change"),
    [
        ("mfu < -1pp", -2.0),
        ("mfu < -4%", -5.0),
        ("undisturbed > 1us", 500.0),
        ("iteration > 1pp", 0.0),
        ("compute > 1pp", 10.0),  # 40 % of 10 ms, then 50 % of 20
        ("straggler > 1us", 7.0),
        ("kernel:gemm > 1us", 3.0),
        ("family:gemm > 1us", 5.0),
        ("module:mlp > 1us", 6.0),
        ("overlapped_communication > 3%", inf),
        ("idle > 3%", 0.0),
    ],
)
def test_a_change_is_in_the_unit_of_its_condition(
    longer_gemm: Comparison, condition: str, change: float
) -> None:
    parts = {
        "compute": Difference(4 * MS, 10 * MS),
        "overlapped_communication": Difference(0, 4),
        "idle": Difference(0, 0),
    }
    late = [Lateness(rank, 9e3, delay, None, None, None) for rank, delay in ((0, 16e3), (1, 8e3))]
    found = replace(
        longer_gemm,
        iteration=Difference(10 * MS, 20 * MS),
        breakdown={**longer_gemm.breakdown, **parts},
        mfu=Difference(0.4, 0.38),
        undisturbed=Difference(8 * MS, 8.5 * MS),
        stragglers=tuple(late),
        kernels=(work("a_gemm_1", 1e3, 2e3), work("gemm", 1e3, 3e3), work("norm", 0, 9e3)),
        families=(work("gemm", 1e3, 6e3), work("grouped gemm", 0, 9e3)),
        modules=(work("mlp", 1e3, 7e3), work("decoder.mlp", 0, 9e3)),
    )
    assert judge(parse(condition), found).change == pytest.approx(change)


@pytest.mark.parametrize(("before", "after", "side"), [(None, 1.0, "A"), (1.0, None, "B")])
def test_the_side_that_does_not_know_is_named(
    longer_gemm: Comparison, before: float | None, after: float | None, side: str
) -> None:
    found = replace(longer_gemm, mfu=Difference(before, after))
    with pytest.raises(TorchTraceError, match=f"mfu is unknown in {side}"):
        judge(parse("mfu < -2pp"), found)


@pytest.mark.parametrize("metric", ["dp", "kernels", "kernel:nvjet", "family:gemm", "idle"])
def test_where_kernels_are_missing_no_condition_on_them_holds_or_fails(
    tmp_path: Path, metric: str
) -> None:
    trace = TraceBuilder(0, 2).step(0, 0, 10 * MS).gpu(GEMM, MS, 2 * MS, launch=5)
    for at in range(20):
        trace.call("cudaLaunchKernel", at, at + 1, args={"correlation": 1000 + at})
    blind = trace.write(tmp_path / "blind" / "rank-0.json")
    with pytest.raises(TorchTraceError, match=f"{metric} is unknown in B"):
        judge(parse(f"{metric} > +1ms"), comparison(window(tmp_path / "a"), blind))


@pytest.mark.parametrize(
    ("condition", "sentence"),
    [
        ("idle", "not a condition; write METRIC > CHANGE, like 'idle > +5%'"),
        ("idle > 5", "not a condition"),
        ("idle = 5%", "not a condition"),
        ("", "not a condition"),
        ("idel > 5%", "no metric 'idel'; there are iteration, compute,"),
        ("kernel: > 5%", "no metric 'kernel:'"),
        ("mfu < -5ms", "mfu is no time; give a change in pp or %."),
    ],
)
def test_a_bad_condition_is_one_sentence_before_any_work(condition: str, sentence: str) -> None:
    error = run("nowhere", "nowhere", "--fail-if", condition).exception
    assert isinstance(error, UsageError)
    assert sentence in str(error)


def test_a_condition_on_what_is_unknown_cannot_pass(tmp_path: Path) -> None:
    a = window(tmp_path / "a")
    with pytest.raises(TorchTraceError, match=r"--fail-if 'mfu < -2pp': mfu is unknown in A\."):
        judge(parse("mfu < -2pp"), comparison(a, a))


def test_a_condition_that_holds_makes_the_status_1_and_says_by_how_much(tmp_path: Path) -> None:
    a, b = window(tmp_path / "a", (4,)), window(tmp_path / "b", (6,))
    assert run(a, b, "--fail-if", "idle > +5%").exit_code == 0
    found = run(a, b, "--fail-if", "idle > +5%", "--fail-if", "compute > +5%")
    assert found.exit_code == 1
    assert "--fail-if 'compute > +5%' holds: +50 %." in found.stderr
    document = json.loads(run(a, b, "--json", "--fail-if", "compute > +5%").stdout)
    assert document["fail_if"] == [
        {"condition": "compute > +5%", "metric": "compute", "change": 50.0, "unit": "%",
         "holds": True}
    ]  # fmt: skip
