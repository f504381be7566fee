# SPDX-License-Identifier: Apache-2.0
"""`compare`: which rows belong together, differences, noise, conditions."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from recorded_traces import SAMPLES
from trace_builder import GEMM, NCCL, TraceBuilder

from megatron.torch_trace.analysis.compare.comparison import Comparison, compare
from megatron.torch_trace.analysis.compare.conditions import judge, parse
from megatron.torch_trace.analysis.compare.configuration import Change, flags_of
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
from megatron.torch_trace.analysis.run.analyse import analyze
from megatron.torch_trace.commands.compare import command
from megatron.torch_trace.errors import TorchTraceError, UsageError
from megatron.torch_trace.report.comparison.sections import sections

MS = 1_000_000
HOSTILE = "</script><img src=x onerror=alert(1)>"


def window(
    folder: Path,
    gemm_ms: tuple[int, ...] = (4,),
    *,
    ranks: int = 2,
    kernel: str = GEMM,
    length_ms: int = 10,
    argv: list[str] | None = None,
    extra: str | None = None,
) -> Path:
    """Ranks with one kernel an iteration, of so many ms in each, and a collective behind it."""
    for rank in range(ranks):
        trace = TraceBuilder(rank, ranks, own={"argv": argv} if argv else None)
        for number, length in enumerate(gemm_ms):
            start = number * length_ms * MS
            end = start + length_ms * MS
            trace.step(number, start, end)
            trace.gpu(kernel, start + MS, start + (1 + length) * MS, launch=start + 100)
            trace.collective(end - 2 * MS, end - MS, launch=start + 200)
            if extra:
                trace.gpu(extra, end - MS, end, launch=start + 300)
        trace.write(folder / f"rank-{rank}.json")
    return folder


def comparison(a: Path, b: Path) -> Comparison:
    return compare(analyze(a, jobs=1), analyze(b, jobs=1))


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, [*map(str, arguments), "--jobs", "1"])


@pytest.fixture(scope="module")
def longer_gemm(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """The kernel takes 6 ms instead of 4 in an iteration of 10."""
    folder = tmp_path_factory.mktemp("longer")
    return comparison(window(folder / "a", (4,)), window(folder / "b", (6,)))


def test_numbers_are_for_an_iteration_and_a_rank(tmp_path: Path) -> None:
    found = comparison(
        window(tmp_path / "a", (4, 4, 4), ranks=2), window(tmp_path / "b", (6,), ranks=1)
    )
    assert (found.iteration.before, found.iteration.after) == (10 * MS, 10 * MS)
    compute = found.breakdown["compute"]
    assert (compute.before, compute.after, compute.change) == (4 * MS, 6 * MS, 2 * MS)
    assert compute.relative == 0.5
    (gemm,) = [row for row in found.kernels if row.name == GEMM]
    assert (gemm.calls.before, gemm.calls.after) == (1, 1)
    assert (gemm.time.before, gemm.time.after) == (4 * MS, 6 * MS)


def test_parts_of_the_difference_add_up_to_the_iterations() -> None:
    found = comparison(SAMPLES / "analysis" / "dp4", SAMPLES / "analysis" / "dp4-rank2-slow")
    parts = ("compute", "exposed_communication", "exposed_memory", "idle")
    changes = [found.breakdown[part].change or 0.0 for part in parts]
    assert sum(changes) == pytest.approx(found.iteration.change)


def test_the_straggler_is_named_in_the_first_lines() -> None:
    folder = SAMPLES / "analysis"
    text = run(folder / "dp4", folder / "dp4-rank2-slow").output
    assert "\nRank 2 is late in B: " in text[:600]
    found = json.loads(run(folder / "dp4", folder / "dp4-rank2-slow", "--json").output)
    assert found["straggler"]["b"] == 2
    assert found["stragglers"][0]["rank"] == 2
    assert "straggler" in [one["code"] for one in found["findings"]["appeared"]]


def test_a_kernel_that_only_one_side_has_has_appeared_or_vanished(tmp_path: Path) -> None:
    found = comparison(
        window(tmp_path / "a", kernel="old_kernel"), window(tmp_path / "b", kernel="new_kernel")
    )
    times = {row.name: (row.time.before, row.time.after) for row in found.kernels}
    assert times["old_kernel"] == (4 * MS, None)
    assert times["new_kernel"] == (None, 4 * MS)
    assert found.kernels[-1].name == NCCL


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


def test_flags_that_differ_are_named_first(tmp_path: Path) -> None:
    a = window(tmp_path / "a", argv=["train.py", "--bf16", "--micro-batch-size", "1", "--lr=0.1"])
    b = window(
        tmp_path / "b",
        argv=["train.py", "--micro-batch-size", "2", "--lr", "0.1", "--torch-profile-with-stack"],
    )
    assert comparison(a, b).configuration.changes == (
        Change("flag", "--bf16", "", None),
        Change("flag", "--micro-batch-size", "1", "2"),
        Change("recording", "--torch-profile-with-stack", None, ""),
    )
    assert flags_of(["--split", "90", "5", "--x=a b", "--y"]) == {
        "--split": "90 5",
        "--x": "a b",
        "--y": "",
    }


def with_run(folder: Path, name: str, **changed: Any) -> Path:
    run_folder = folder / name
    run_json = {
        "argv": ["train.py"],
        "arguments": {"hidden_size": 8, "rank": 0, "save": "x"},
        "versions": {"torch": "2.9.0", "apex": None},
        "environment": {"NCCL_ALGO": "Ring", "SLURM_JOB_ID": name},
        "layout": {"tp": 1, "dp": 2},
        **changed,
    }
    window(run_folder / "iter-0000005")
    (run_folder / "run.json").write_text(json.dumps(run_json))
    return run_folder / "iter-0000005"


def test_run_json_tells_versions_environment_and_layout_but_no_job_ids(tmp_path: Path) -> None:
    a = with_run(tmp_path, "20260101-000000")
    b = with_run(
        tmp_path,
        "20260102-000000",
        arguments={"hidden_size": 16, "rank": 1, "save": "y", "only_newer_megatron_knows": 1},
        versions={"torch": "2.9.1", "apex": None},
        environment={"NCCL_ALGO": "Tree", "SLURM_JOB_ID": "8"},
        layout={"tp": 2, "dp": 1},
    )
    assert comparison(a, b).configuration.changes == (
        Change("argument", "hidden_size", "8", "16"),
        Change("version", "torch", "2.9.0", "2.9.1"),
        Change("environment", "NCCL_ALGO", "Ring", "Tree"),
        Change("topology", "dp size", "2", "1"),
        Change("topology", "tp size", "1", "2"),
        Change("place", "save", "x", "y"),
    )
    assert "A and B are of the same run" in run(a, a).output


def test_what_is_not_recorded_is_said(tmp_path: Path) -> None:
    a, b = window(tmp_path / "a"), with_run(tmp_path, "20260101-000000")
    assert comparison(a, b).configuration.not_recorded == ("A",)
    text = " ".join(run(a, b).output.split())
    assert "The flags cannot be compared: A has no run.json beside the traces" in text


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


def test_the_page_shows_a_hostile_name_as_text_and_is_complete_in_itself(tmp_path: Path) -> None:
    a, b = window(tmp_path / "a"), window(tmp_path / "b", extra=HOSTILE)
    output = tmp_path / "compare.html"
    assert run(a, b, "-o", output).exit_code == 0
    page = output.read_text()
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;" in page
    assert "http://" not in page
    assert "https://" not in page
    assert isinstance(run(a, b, "-o", output).exception, UsageError)


def test_what_may_be_noise_has_no_colour_on_the_page(tmp_path: Path) -> None:
    samples = SAMPLES / "analysis"
    output = tmp_path / "compare.html"
    assert run(samples / "dp4", samples / "dp4-rank2-slow", "-o", output).exit_code == 0
    rows = re.findall(r"<tr>\n(.*?)</tr>", output.read_text(), re.DOTALL)
    changes = [(re.findall(r"<td class=\"(\w*)\">[+-]\d", row), ">no</td>" in row) for row in rows]
    assert {tone for tones, may_be_noise in changes if may_be_noise for tone in tones} == {""}
    assert {tone for tones, may_be_noise in changes if not may_be_noise for tone in tones} == {
        "more", "less",
    }  # fmt: skip


@pytest.mark.parametrize("folders", [("dp4", "dp4-rank2-slow"), ("dp4", "ep4-moe")])
def test_text_is_plain_and_fits_and_json_has_no_nan(folders: tuple[str, str]) -> None:
    paths = [SAMPLES / "analysis" / folder for folder in folders]
    text = run(*paths).output
    assert text.isascii()
    assert [line for line in text.splitlines() if len(line) > 100] == []
    json.loads(run(*paths, "--json").output, parse_constant=lambda name: pytest.fail(name))


def test_of_many_ranks_those_that_changed_most_are_shown(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    for folder, odd in ((a, 4), (b, 7)):
        for rank in range(18):
            window(tmp_path / "one", (odd if rank == 17 else 4,), ranks=1)
            trace = json.loads((tmp_path / "one" / "rank-0.json").read_text())
            trace["distributedInfo"] = {"rank": rank, "world_size": 18}
            folder.mkdir(exist_ok=True)
            (folder / f"rank-{rank}.json").write_text(json.dumps(trace))
    (ranks,) = [one for one in sections(comparison(a, b), top=3) if one.caption == "Ranks"]
    cells = [[cell.text for cell in row.cells] for row in ranks.rows]
    assert [row[0] for row in cells] == [str(rank) for rank in range(2, 18)]
    assert cells[-1][:5] == ["17", "10.0 > 10.0", "0", "4.00 > 7.00", "+3.00"]
    assert ranks.more == 2
