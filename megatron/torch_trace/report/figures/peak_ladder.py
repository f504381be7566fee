# SPDX-License-Identifier: Apache-2.0
"""From the GPU's peak down to the MFU: what takes each step away."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from megatron.torch_trace.analysis.gpu_work.mfu import UNDISTURBED
from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.report.per_iteration import steps_by_rank
from megatron.torch_trace.wording import duration, number, percent

_GEMM = ("gemm", "attention")


@dataclass(frozen=True, slots=True)
class Rung:
    """A share of the peak, and of what it is.

    Args:
        label: what the time of this rung holds.
        share: model FLOPs / (time x peak), 0 to 1.
        told: the time and the speed.
    """

    label: str
    share: float
    told: str


def peak_ladder(analysis: Analysis) -> list[Rung]:
    """The rungs from the top; none where the MFU is unknown."""
    mfu, shares = analysis.mfu, analysis.summary.shares
    iteration = analysis.summary.iteration_ns
    known = (mfu.value, mfu.model_flops, mfu.gpus, mfu.peak_tflops, shares, iteration)
    if None in known or shares is None or not iteration:
        return []
    steps = fmean(steps_by_rank(analysis).values())
    products = sum(row.time_ns for row in analysis.summary.families if row.name in _GEMM) / steps
    flops = (mfu.model_flops or 0) / (mfu.gpus or 1)
    peak = (mfu.peak_tflops or 0) * 1e12

    def rung(label: str, time_ns: float) -> Rung:
        speed = flops / (time_ns * 1e-9)
        return Rung(
            label,
            min(1.0, speed / peak),
            f"{duration(time_ns)}, {number(speed / 1e12)} TFLOP/s, {percent(speed / peak)}",
        )

    found = [Rung("peak", 1.0, f"{mfu.peak_tflops:g} dense TFLOP/s")]
    if products:
        found.append(rung("matrix products and attention alone", products))
    time = shares.compute * iteration
    if time > 0:
        found.append(rung("all compute", time))
        time += shares.exposed_communication * iteration
        found.append(rung("with exposed communication", time))
        time += shares.exposed_memory * iteration
        found.append(rung("with exposed copies", time))
    found.append(rung("with idle time: the recorded iteration", iteration))
    if mfu.of == UNDISTURBED and mfu.iteration_ns:
        found.append(rung("the undisturbed iteration: MFU", mfu.iteration_ns))
    return found
