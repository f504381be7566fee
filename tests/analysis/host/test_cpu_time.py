# SPDX-License-Identifier: Apache-2.0
"""A newcomer's first trace is of the CPU: its time is the answer, and nothing is "unknown"."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from analyze_document import document
from trace_builder import BACKWARD, GEMM, LOOP, TraceBuilder

from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.analysis.results.cpu_time import CpuSplit, own_times
from megatron.torch_trace.analysis.run.analyse import analyze
from megatron.torch_trace.analysis.timeline.activity import Rows
from megatron.torch_trace.errors import TorchTraceError
from megatron.torch_trace.report import sentences
from megatron.torch_trace.report.html import render_html
from megatron.torch_trace.report.text import render

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
MODEL, LINEAR = "model: GPTModel", "decoder.layers.0: TransformerLayer"


def trained_on_the_cpu(rank: int = 0, *, steps: bool = True) -> TraceBuilder:
    """Two steps of 1 ms: 0.1 in the loader, 0.4 in operators, then 0.3 on the backward thread."""
    trace = TraceBuilder(rank, 1, own={"device": "cpu"})
    trace.entries["deviceProperties"] = []
    for number, begin in ((3, 0), (4, 1_000_000)):
        if steps:
            trace.step(number, begin, begin + 1_000_000)
        trace.slice("user_annotation", LOADER, begin, 100_000)
        trace.op("aten::stack", begin + 20_000, begin + 60_000)
        trace.slice("user_annotation", "forward micro-batch 0", begin + 100_000, 400_000)
        trace.slice("user_annotation", MODEL, begin + 100_000, 400_000)
        trace.slice("user_annotation", LINEAR, begin + 150_000, 300_000)
        trace.op("aten::linear", begin + 100_000, begin + 500_000)
        trace.op("aten::addmm", begin + 150_000, begin + 450_000)
        trace.op("MmBackward0", begin + 600_000, begin + 900_000, tid=BACKWARD)
        trace.op("aten::mm", begin + 600_000, begin + 900_000, tid=BACKWARD)
    return trace


@pytest.fixture
def analysis(tmp_path: Path) -> Analysis:
    return analyze(trained_on_the_cpu().write(tmp_path / "rank-0.json"))


def test_the_parts_of_the_cpus_time_add_up_to_the_window_and_to_each_step(
    analysis: Analysis,
) -> None:
    cpu = analysis.ranks[0].cpu
    assert cpu is not None
    assert cpu.window == CpuSplit(None, 2_000_000, 1_400_000, 200_000, 400_000)
    assert cpu.steps == (
        CpuSplit(3, 1_000_000, 700_000, 100_000, 200_000),
        CpuSplit(4, 1_000_000, 700_000, 100_000, 200_000),
    )


def test_an_operators_own_time_is_without_what_it_calls(analysis: Analysis) -> None:
    cpu = analysis.ranks[0].cpu
    assert cpu is not None
    assert [(row.operator, row.calls, row.self_ns, row.time_ns) for row in cpu.operators] == [
        ("aten::addmm", 2, 600_000, 600_000),
        ("aten::mm", 2, 600_000, 600_000),
        ("aten::linear", 2, 200_000, 800_000),
        ("aten::stack", 2, 80_000, 80_000),
        ("MmBackward0", 2, 0, 600_000),
    ]
    assert sum(row.share for row in cpu.operators) == pytest.approx(1)


def test_modules_have_the_time_of_those_below_them_and_their_own(analysis: Analysis) -> None:
    cpu = analysis.ranks[0].cpu
    assert cpu is not None
    assert [(row.module, row.calls, row.total_ns, row.self_ns) for row in cpu.modules] == [
        ("decoder.layers.0", 2, 600_000, 600_000),
        ("model", 2, 800_000, 200_000),
    ]


def test_own_times_are_exact_where_ranges_touch_share_a_begin_or_are_empty() -> None:
    #  [0 ------------- 100)   [0 -- 40)   [0 - 10)  [40 -- 70)  [50, 50)   and a thread beside
    start = np.array([0, 0, 0, 40, 50, 20])
    end = np.array([100, 40, 10, 70, 50, 30])
    track = np.array([0, 0, 0, 0, 0, 1])
    rows = Rows(start, end, np.arange(6), track)
    assert own_times(rows).tolist() == [30, 30, 10, 30, 0, 10]


def test_the_terminal_answers_in_time_of_the_cpu_and_never_with_unknown(
    analysis: Analysis,
) -> None:
    said = render(analysis)
    assert said.splitlines()[:9] == [
        "rank 0; on the CPU; steps 3-4, 1 ms an iteration.",
        "",
        "Operators 70 % of the iteration, data loader 10 %, other time 20 % (Python, waiting).",
        "Operators by their own time: aten::addmm 41 %, aten::mm 41 %, aten::linear 14 %, "
        "aten::stack 5.4 %.",
        "",
        "FINDINGS",
        "  i   finding recorded_on_the_cpu: Training ran on the CPU, so all times are times of the "
        "CPU.",
        "      > Train on a GPU to see where the time of a GPU goes.",
        "",
    ]
    for part in (
        "WHERE THE TIME OF THE CPU WENT (ms)",
        "OPERATORS by their own time on the CPU (ms an iteration)",
        "MODULES (ms an iteration of the CPU): rank 0",
        "PHASES (ms an iteration; they nest): rank 0",
        "MICRO-BATCHES (ms, means; the longest on the CPU)",
    ):
        assert part in said
    assert "unknown" not in said
    assert "MFU" not in said
    assert "GPU work" not in said


def test_the_page_has_the_same_answer_and_no_grid_of_unknown(analysis: Analysis) -> None:
    page = render_html(analysis)
    for name in ("cpu-ranks", "cpu-operators", "cpu-modules-0", "loop", "microbatches"):
        assert f'id="{name}"' in page
    assert ">unknown<" not in page
    assert "GPU idle" not in page
    assert "utilisation is unknown" not in page


def test_the_document_for_machines_has_it_too(analysis: Analysis) -> None:
    (rank,) = document(analysis)["ranks"]
    assert rank["cpu"]["window"]["operators_ns"] == 1_400_000
    assert rank["cpu"]["operators"][0]["operator"] == "aten::addmm"
    assert rank["breakdown_ns"] is None
    frames = analysis.to_polars()
    assert frames["cpu_operators"]["self_ns"].sum() == 1_480_000
    assert frames["cpu_modules"].height == 2


def test_a_trace_of_a_gpu_machine_with_neither_steps_nor_launches_is_still_none(
    tmp_path: Path,
) -> None:
    path = TraceBuilder().op("aten::mm", 100_000, 300_000).write(tmp_path / "trace.json")
    with pytest.raises(TorchTraceError, match="holds neither ProfilerStep nor GPU work"):
        analyze(path)


def test_without_steps_the_window_is_from_the_first_operator_to_the_last(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.entries["deviceProperties"] = []
    trace.op("aten::mm", 100_000, 300_000).op("aten::add", 500_000, 600_000)
    analysis = analyze(trace.write(tmp_path / "trace.json"))
    assert sentences.head(analysis) == (
        "rank 0; on the CPU; no ProfilerStep, 500 us from the first operator to the last."
    )
    assert sentences.answer(analysis) == [
        "Operators 60 % of the window, other time 40 % (Python, waiting).",
        "Operators by their own time: aten::mm 67 %, aten::add 33 %.",
    ]
    (finding,) = analysis.findings
    assert finding.code == "recorded_on_the_cpu"
    assert finding.title == ("Only the CPU was recorded: there is neither GPU work nor a launch.")
    assert "ProfilerActivity.CUDA" in finding.advice


def test_of_several_ranks_operators_are_means(tmp_path: Path) -> None:
    for rank in (0, 1):
        trace = trained_on_the_cpu(rank)
        if rank:
            trace.op("aten::relu", 920_000, 960_000)
        trace.write(tmp_path / f"rank-{rank}.json")
    said = render(analyze(tmp_path), top=10)
    assert "OPERATORS by their own time on the CPU (ms an iteration, mean of 2 ranks)" in said
    assert "aten::relu" in said
    line = next(line for line in said.splitlines() if "aten::relu" in line)
    assert line.split()[1:3] == ["0.25", "0.010"]  # one of two ranks, in one of two iterations


def test_a_recording_of_a_gpu_has_no_section_on_the_cpu(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 1_000_000).op("aten::mm", 0, 500_000, tid=LOOP)
    trace.gpu(GEMM, 0, 900_000, launch=1_000)
    analysis = analyze(trace.write(tmp_path / "rank-0.json"))
    assert analysis.ranks[0].cpu is None
    assert "TIME OF THE CPU" not in render(analysis)
