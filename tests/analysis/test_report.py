# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from analyze_document import document
from recorded_traces import SAMPLES
from trace_builder import GEMM, NCCL, TraceBuilder, collective_args

from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.analysis.run.analyse import analyze
from megatron.torch_trace.report import sentences
from megatron.torch_trace.report.table import table
from megatron.torch_trace.report.text import render

FOLDERS = [
    "tp2pp2",
    "tp2pp2-stack",
    "pp2-recompute-spans",
    *(f"analysis/{n}" for n in ("dp4", "ep4-moe")),
]


@pytest.fixture(scope="module", params=FOLDERS)
def analysis(request: pytest.FixtureRequest) -> Analysis:
    return analyze(SAMPLES / request.param)


def small(folder: Path) -> Analysis:
    for rank, start in ((0, 300_000), (1, 600_000)):
        trace = TraceBuilder(rank, 2).step(5, 0, 1_000_000)
        trace.op("aten::mm", 0, 50_000).gpu(GEMM, 20_000, 300_000, launch=10_000)
        trace.collective(start, 700_000, dimension="dp", launch=40_000)
        trace.gpu(GEMM, 700_000, 1_000_000, launch=45_000)
        trace.write(folder / f"rank-{rank}.json")
    return analyze(folder)


def test_the_report_says_the_answer_first(tmp_path: Path) -> None:
    lines = render(small(tmp_path), width=100).splitlines()
    assert lines[:6] == [
        "2 ranks; NVIDIA H200; step 5, 1 ms an iteration; MFU unknown.",
        "",
        "Exposed communication 25 % of the iteration, of which data parallel 25 %.",
        "Idle 17 %: 16 % waiting for launched work to start, 1.0 % waiting for the CPU to launch "
        "work.",
        "Compute 58 %.",
        "",
    ]


def test_communication_of_two_dimensions_at_once_is_said_to_be_counted_twice(
    tmp_path: Path,
) -> None:
    trace = TraceBuilder().step(1, 0, 1000).gpu(GEMM, 0, 500, launch=0)
    trace.collective(500, 800, dimension="dp", launch=10)
    trace.collective(600, 1000, dimension="tp", launch=20)
    said = sentences.answer(analyze(trace.write(tmp_path / "rank-0.json")))
    assert said[0] == (
        "Exposed communication 50 % of the iteration, of which tensor parallel 40 %, data parallel "
        "30 %, 20 % at the same time."
    )


def test_a_single_gpu_has_no_sentence_about_communication(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 1000).gpu(GEMM, 100, 800, launch=50)
    assert sentences.answer(analyze(trace.write(tmp_path / "rank-0.json"))) == [
        "Idle 30 % of the iteration: 25 % waiting for the CPU to launch work, 5.0 % waiting for "
        "launched work to start.",
        "Compute 70 %; no communication.",
    ]


def test_every_line_fits_the_terminal(analysis: Analysis) -> None:
    for width in (80, 100):
        long = [line for line in render(analysis, width=width).splitlines() if len(line) > width]
        assert long == []


def test_the_report_is_plain_text(analysis: Analysis) -> None:
    text = render(analysis, width=40)
    assert text.isascii()
    assert "\x1b" not in text
    assert "nan" not in text.split()


def test_all_parts_are_there(analysis: Analysis) -> None:
    text = render(analysis)
    for heading in ("FINDINGS", "WHERE THE TIME WENT", "COMMUNICATION", "GPU WORK BY FAMILY",
                    "TOP KERNELS", "TOP OPERATORS", "WHY THE GPU WAS IDLE", "LAUNCHES",
                    "NOTES"):  # fmt: skip
        assert f"\n{heading}" in text
    assert ("\nPIPELINE" in text) == any(rank.pipeline for rank in analysis.ranks)
    assert ("\nSTRAGGLERS" in text) == (len(analysis.ranks) > 1)
    for heading, part in (("PHASES", "phases"), ("MODULES", "modules")):
        assert (f"\n{heading}" in text) == any(getattr(rank, part) for rank in analysis.ranks)
    assert ("\nTOP SHAPES" in text) == any(rank.shapes for rank in analysis.ranks)


def test_top_limits_the_rows(analysis: Analysis) -> None:
    assert len(render(analysis, top=2)) < len(render(analysis, top=9))


def test_unknown_utilisation_is_unknown_everywhere(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 1_000_000)
    for at in range(20):
        trace.call("cudaLaunchKernel", at, at + 1, args={"correlation": 1000 + at})
    analysis = analyze(trace.write(tmp_path / "rank-0.json"))
    text = render(analysis)
    assert "Where the time went is unknown. 20 of 20 launches have no kernel" in text
    assert "unknown" in text.split("WHERE THE TIME WENT")[1].split("\n\n")[0]
    assert "0 %" not in text.replace("20 %", "")
    assert document(analysis)["ranks"][0]["breakdown_ns"] is None


def test_what_runs_beside_kernels_that_are_missing_is_unknown(tmp_path: Path) -> None:
    groups = [{"pg_name": "pp", "pg_desc": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": [0, 1]}]
    trace = TraceBuilder(0, 2, groups=groups).step(1, 0, 1_000_000)
    for at in range(20):
        trace.call("cudaLaunchKernel", at, at + 1, args={"correlation": 1000 + at})
    trace.gpu(GEMM, 100_000, 200_000, launch=50)
    args = collective_args("send", "pp")
    trace.gpu(NCCL, 300_000, 400_000, launch=60, args=args)
    parts = render(analyze(trace.write(tmp_path / "rank-0.json"))).split("\n\n")
    (communication,) = (part for part in parts if part.startswith("COMMUNICATION"))
    (pipeline,) = (part for part in parts if part.startswith("PIPELINE"))
    assert communication.splitlines()[2].split()[3:7] == ["1", "0.10", "10", "%"]
    assert "unknown" in communication
    # Length is known; compute, send/recv, idle and bubble are not.
    assert pipeline.splitlines()[2].split()[-6:] == ["0.30", *["unknown"] * 5]


def test_a_trace_without_operators_does_not_call_everything_python(tmp_path: Path) -> None:
    def loop(name: str, *, operators: bool) -> list[str]:
        trace = TraceBuilder().step(1, 0, 1_000_000).gpu(GEMM, 10, 900_000, launch=1)
        trace.call("cudaDeviceSynchronize", 100_000, 300_000)
        if operators:
            trace.op("aten::mm", 400_000, 800_000)
        text = render(analyze(trace.write(tmp_path / name / "rank-0.json")))
        return text.split("LAUNCHES")[1].splitlines()[2].split()[-3:]

    # operators, waiting, Python
    assert loop("with", operators=True) == ["0.40", "0.20", "0.40"]
    assert loop("without", operators=False) == ["-", "0.20", "-"]


def test_a_step_and_a_rank_without_communication_have_no_empty_tables(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 1_000_000).gpu(GEMM, 10, 1_000_000, launch=1)
    text = render(analyze(trace.write(tmp_path / "rank-0.json")))
    assert "COMMUNICATION" not in text
    assert "STRAGGLERS" not in text
    assert "FINDINGS\n  None." in text


def test_of_many_ranks_the_least_and_the_most_idle_are_shown(tmp_path: Path) -> None:
    for rank in range(20):
        trace = TraceBuilder(rank, 20).step(1, 0, 1_000_000)
        trace.gpu(GEMM, 0, 100_000 + 1_000 * rank, launch=0)
        trace.collective(900_000 - 30_000 * rank, 950_000, size=20, launch=10)
        trace.write(tmp_path / f"rank-{rank:02d}.json")
    analysis = analyze(tmp_path)
    assert analysis.summary.extremes == (*range(8), *range(12, 20))
    text = render(analysis, width=80)
    assert "The least and the most idle ranks; --rank R or --json shows 4 more ranks." in text
    assert "4 more ranks imposed less." in text
    assert max(map(len, text.splitlines())) <= 80


def test_flops_in_the_trace_beat_those_of_the_command_line(tmp_path: Path) -> None:
    trace = TraceBuilder(0, 1, own={"model_flops_per_iteration": int(989.4e9 * 0.25)})
    path = trace.step(1, 0, 1_000_000).gpu(GEMM, 0, 10, launch=0).write(tmp_path / "r.json")
    mfu = analyze(path, model_flops=1.0).mfu
    assert (mfu.source, round(mfu.value or 0, 6)) == ("trace", 0.25)


def test_flops_of_the_model_give_mfu(tmp_path: Path) -> None:
    path = (
        TraceBuilder().step(1, 0, 1_000_000).gpu(GEMM, 0, 10, launch=0).write(tmp_path / "r.json")
    )
    text = render(analyze(path, model_flops=989.4e9 * 0.5))
    assert "MFU 50 %" in text
    assert "989.4 dense TFLOP/s" in text


def keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: keys(inner) for key, inner in value.items()}
    return [keys(value[0])] if isinstance(value, list) and value else None


def test_the_document_is_schema_1(tmp_path: Path) -> None:
    found = document(small(tmp_path))
    assert found["schema"] == 1
    assert {"ranks", "stragglers", "pipeline", "findings", "skipped_files"} <= set(found)
    rank = found["ranks"][0]
    assert rank["coordinates"] == {}
    assert rank["window_ns"] == 1_000_000
    assert rank["communication_ns"] == 400_000
    assert rank["breakdown_ns"] == {
        "compute": 580_000,
        "exposed_communication": 400_000,
        "exposed_memory": 0,
        "idle": 20_000,
    }
    assert rank["overlapped_communication_ns"] == 0
    assert {"step", "start_ns", "end_ns", "breakdown_ns"} == set(rank["steps"][0])
    assert {"dimension", "group", "collective", "calls", "time_ns", "exposed_ns", "bytes",
            "busbw_gbps"} <= set(rank["communication"][0])  # fmt: skip
    assert {"name", "class", "calls", "time_ns"} <= set(rank["kernels"][0])
    assert {"launches", "without_kernel"} <= set(rank["launches"])
    assert rank["repairs"] == {}
    assert rank["modules"] == rank["module_classes"] == []
    assert rank["module_account"] is None
    assert rank["phases"] == rank["microbatches"] == rank["bubble"] == []
    assert {"rank", "last_arrivals", "imposed_wait_ns"} <= set(found["stragglers"][0])
    assert {"code", "severity", "title", "evidence", "advice", "gain_ns", "gain_error_ns",
            "undisturbed_gain_ns", "undisturbed_gain_error_ns", "change",
            "cause"} == set(found["findings"][0])  # fmt: skip


def test_the_document_of_every_sample_is_strict_json(analysis: Analysis) -> None:
    found = document(analysis)
    for rank in found["ranks"]:
        assert sum(rank["breakdown_ns"].values()) == rank["window_ns"]


def test_a_table_is_cut_where_it_may_be_and_aligned(tmp_path: Path) -> None:
    rows = [["a" * 40, "x", "1"], ["b", "yy", "1,000"]]
    assert table(("<~name", "<of", "calls"), rows, 30) == [
        "  name               of  calls",
        "  aaaaaaa...aaaaaaa  x       1",
        "  b                  yy  1,000",
    ]
