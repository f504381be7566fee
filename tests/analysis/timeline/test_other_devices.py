# SPDX-License-Identifier: Apache-2.0
"""Devices of other makers: named with their categories, never asked for CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_builder import TraceBuilder, op

from megatron.torch_trace import analyze
from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.inspect.facts import problems
from megatron.torch_trace.inspect.survey import survey

NOT_ANALYSED = (
    "The work of this device is not analysed, so its utilisation is unknown; operators, phases and "
    "the CPU's side are analysed, and the timeline shows all rows."
)


def advice(analysis: Analysis) -> str:
    return " ".join(finding.advice for finding in analysis.findings)


@pytest.mark.parametrize("steps", [False, True])
@pytest.mark.parametrize(
    ("categories", "device"),
    [
        (
            ("mtia_ccp_events", "mtia_runtime"),
            "an MTIA accelerator (2 rows of mtia_ccp_events, 2 rows of mtia_runtime)",
        ),
        (("hpu_op",), "an HPU (Gaudi) (2 rows of hpu_op)"),
        (
            ("privateuse1_runtime",),
            "a device of another backend (PrivateUse1) (2 rows of privateuse1_runtime)",
        ),
        (("",), "an Ascend NPU (2 rows of Task Types without a category)"),
    ],
)
def test_rows_of_another_device_are_named_with_what_can_be_said(
    tmp_path: Path, categories: tuple[str, ...], device: str, steps: bool
) -> None:
    trace = TraceBuilder()
    if steps:
        trace.step(1, 0, 1_000)
    for at in (100, 300):
        trace.op("aten::mm", at, at + 50)
        for category in categories:
            args = {} if category else {"Task Type": "AI_CORE", "Stream Id": 2}
            trace.slice(category, "launchMatMul", at + 20, 60, pid=901, tid=2, args=args)
    path = trace.write(tmp_path / "rank-0.json")
    sentence = f"The trace is of {device}. {NOT_ANALYSED}"
    analysis, seen = analyze(path), survey(path)
    assert analysis.ranks[0].unknown == sentence
    assert sentence in problems(seen)
    assert not seen.has_faults
    assert [finding.code for finding in analysis.findings] == ["other_device"]
    assert "cuda" not in advice(analysis)


@pytest.mark.parametrize(
    ("call", "named"), [("hipLaunchKernel", False), ("cudaLaunchKernel", True)]
)
def test_rocm_without_kernels_is_not_asked_for_cuda(tmp_path: Path, call: str, named: bool) -> None:
    trace = TraceBuilder().step(1, 0, 1_000)
    for at in range(20):
        trace.call(call, at, at + 1, args={"correlation": 1_000 + at})
    analysis = analyze(trace.write(tmp_path / "rank-0.json"))
    assert [finding.code for finding in analysis.findings] == ["missing_gpu_events"]
    assert ("cuda" in advice(analysis)) == named
    assert ("Nsight" in advice(analysis)) == named


def test_a_trace_of_the_gpu_alone_says_what_is_known(tmp_path: Path) -> None:
    trace = TraceBuilder(device="AMD Instinct MI300X").gpu("Cijk_Alik_Bljk", 0, 60)
    path = trace.gpu("Cijk_Alik_Bljk", 80, 100).write(tmp_path / "rank-0.json")
    analysis = analyze(path)
    breakdown = analysis.ranks[0].breakdown
    assert breakdown is not None
    assert (breakdown.compute, breakdown.idle) == (80, 20)
    assert "launched_before_window" not in [finding.code for finding in analysis.findings]
    assert (
        "The trace holds no calls and no operators of the CPU: compute, communication and copies "
        "are known; what launched them and why the GPU was idle are unknown."
    ) in problems(survey(path))


def test_work_of_a_gpu_beside_rows_of_another_device_is_analysed(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 100).gpu("gemm", 10, 60, launch=5)
    trace.slice("xpu_runtime", "urEnqueueKernelLaunch", 2, 1)
    analysis = analyze(trace.write(tmp_path / "rank-0.json"))
    assert analysis.ranks[0].unknown is None


def test_an_array_of_events_is_enough(tmp_path: Path) -> None:
    rows = [
        op("aclnnMatmul", 0, 20_000, pid=900, tid=900),
        op("aclnnMatmul", 100_000, 120_000, pid=900, tid=900),
        op("MatMulV3", 30_000, 70_000, cat=None, pid=901, tid=2, args={"Task Type": "AI_CORE"}),
    ]
    path = tmp_path / "npu.json"
    path.write_text(f"[{', '.join(rows)}]")
    assert "an Ascend NPU (1 row of" in str(analyze(path).ranks[0].unknown)
