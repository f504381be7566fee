# SPDX-License-Identifier: Apache-2.0
"""What the numbers and the outputs of a case say, besides what torch itself said."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from megatron.torch_profile.component.measure.finding import Finding
from megatron.torch_profile.component.results import Result
from megatron.torch_profile.component.step import Step
from megatron.torch_trace.wording import duration, percent

_WIDE = ("float32", "float64")
_NOISY = 0.25
_LAUNCH_BOUND = 0.75
"""If the GPU works for a smaller share of the step."""
_CUDA_GRAPHS = ("reduce-overhead", "max-autotune")


def of_result(result: Result, step: Step) -> Result:
    """The result with its findings."""
    return replace(result, findings=(*result.findings, *_findings(result, step)))


def _findings(result: Result, step: Step) -> Iterator[Finding]:
    case = result.case
    asked = case.cast or (case.dtype if case.autocast is None else None)
    wider = sorted(step.output_dtypes & set(_WIDE))
    if asked in ("bfloat16", "float16") and wider:
        yield Finding(
            "dtype_fallback",
            f"The output is {wider[0]} where {asked} was asked for: something inside computes in "
            f"{wider[0]}.",
        )
    if result.roof_share is not None and result.roof_share > 1.05:
        yield Finding(
            "above_the_roof",
            f"It reaches {percent(result.roof_share)} of the roof: others were at work when the "
            "ceilings were measured, or it skips work that torch counts.",
        )
    yield from _launch_bound(result)
    summary = result.summary
    if summary is not None and summary.spread > _NOISY:
        yield Finding(
            "noisy",
            f"From p10 to p90 the steps spread over {percent(summary.spread)} of the median; "
            "measure more steps, or keep others off this device.",
        )


def _launch_bound(result: Result) -> Iterator[Finding]:
    summary, gpu = result.summary, result.gpu_ns
    if summary is None or gpu is None or gpu >= _LAUNCH_BOUND * summary.median:
        return
    queued = ""
    if result.queued_ns is not None and result.queued_ns < _LAUNCH_BOUND * summary.median:
        queued = f" With its calls queued beforehand a step takes {duration(result.queued_ns)}."
    graphs = result.case.compile is not None and result.case.compile.mode in _CUDA_GRAPHS
    better = (
        "larger inputs fill the GPU better"
        if graphs
        else "CUDA graphs (`compile: reduce-overhead`), fewer kernels or larger inputs would help"
    )
    yield Finding(
        "launch_bound",
        f"The GPU works {duration(gpu)} of the {duration(summary.median)} that a step takes; for "
        f"the rest ({percent(1 - gpu / summary.median)}) it waits for the CPU's calls.{queued} "
        f"The time of this step is the CPU's: {better}.",
    )
