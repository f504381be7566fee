# SPDX-License-Identifier: Apache-2.0
"""Model FLOPs utilisation, from Megatron's own count of FLOPs; never from torch's with_flops.

    MFU = model FLOPs per iteration / (iteration time x GPUs x dense peak of one GPU)

The iteration is the undisturbed one where that is known: what the profiler adds is not training's.

Dense bf16 peaks, in TFLOP/s, from the vendors' data sheets; sparse numbers are twice as high and
are not used. A GPU that is not in the table has no MFU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

UNDISTURBED, RECORDED = "undisturbed", "recorded"
_PEAKS = (
    # NVIDIA data sheets: H100/H200 SXM 989, PCIe 756, NVL 835; B200 2250, GB200 2500, B300 2250.
    (r"GB200", 2500.0),
    (r"GB300", 2500.0),
    (r"\bB200\b", 2250.0),
    (r"\bB300\b", 2250.0),
    (r"H200 NVL", 835.0),
    (r"\bH200\b|GH200", 989.4),
    (r"H100 NVL", 835.0),
    (r"H100 PCIe", 756.0),
    (r"\bH100\b", 989.4),
    (r"\bH800\b", 989.4),
    (r"\bH20\b", 148.0),
    (r"\bA100\b|\bA800\b", 312.0),
    (r"\bA40\b", 149.7),
    (r"\bA10G\b", 70.0),
    (r"\bA10\b", 125.0),
    (r"\bL40S\b", 362.0),
    (r"\bL4\b", 121.0),
    # AMD data sheets; of the MI250s half: each of their two dies is a GPU of its own to torch.
    (r"MI355X", 2516.6),
    (r"MI350X", 2306.9),
    (r"MI325X", 1307.4),
    (r"MI300X", 1307.4),
    (r"MI300A", 980.6),
    (r"MI250X", 191.5),
    (r"MI250\b", 181.0),
)

EIGHT_BIT_SPEED = 2
"""The dense peak in 8 bits is that of bf16 times this, on all GPUs above with such products."""


@dataclass(frozen=True, slots=True)
class Mfu:
    """MFU and what it was computed from.

    Args:
        value: share of the peak, 0 to 1; None if anything below is unknown.
        reason: what is unknown, a sentence; None if nothing.
        model_flops: per iteration, over all GPUs.
        source: `trace` (capture's metadata) or `--model-flops`.
        iteration_ns: the iteration that all of this is of.
        gpus: world size.
        peak_tflops: dense bf16 peak of one GPU.
        of: `undisturbed` or `recorded`, which iteration that is.
        tflops_per_gpu: model TFLOP/s of one GPU, also where its peak is unknown.
        tokens_per_s: over all GPUs; None if nothing tells how many an iteration has.
    """

    value: float | None
    reason: str | None
    model_flops: float | None
    source: str | None
    iteration_ns: float | None
    gpus: int | None
    peak_tflops: float | None
    of: str = RECORDED
    tflops_per_gpu: float | None = field(default=None, compare=False)
    tokens_per_s: float | None = field(default=None, compare=False)


def dense_peak_tflops(device: str | None) -> float | None:
    """Dense bf16 peak of a GPU by its name, TFLOP/s; None if it is not in the table.

    The SKU decides: `NVIDIA H100 PCIe` is 756, `NVIDIA H100 80GB HBM3` 989. Source: the vendors'
    data sheets, named in the table.
    """
    for pattern, peak in _PEAKS:
        if device and re.search(pattern, device, re.IGNORECASE):
            return peak
    return None


def compute_mfu(
    *,
    model_flops: float | None,
    source: str | None,
    iteration_ns: float | None,
    gpus: int | None,
    device: str | None,
    undisturbed_ns: float | None = None,
    tokens: int | None = None,
) -> Mfu:
    """MFU, or why there is none.

    Args:
        model_flops, source, gpus: see `Mfu`.
        iteration_ns: mean of the recorded steps.
        device: name of the GPU.
        undisturbed_ns: an iteration without the profiler, which is taken instead.
        tokens: of one iteration over all GPUs.

    Returns:
        `value` as a share of 1; where it is None, `reason` says why, and nothing is raised.
        Source: docs/computed.md, "MFU".
    """
    of = UNDISTURBED if undisturbed_ns else RECORDED
    iteration_ns = undisturbed_ns or iteration_ns
    peak = dense_peak_tflops(device)
    reason = None
    if device == "cpu":
        reason = "trained without a GPU."
    elif not model_flops:
        reason = "the trace does not hold the model's FLOPs; give them with --model-flops."
    elif not iteration_ns:
        reason = "the trace has no ProfilerStep, so the time of an iteration is unknown."
    elif not gpus:
        reason = "the trace does not hold the number of GPUs."
    elif peak is None:
        reason = f"the dense peak of the GPU {device or '(not recorded)'} is unknown."
    speed = value = None
    if device != "cpu" and model_flops and iteration_ns and gpus:
        speed = model_flops / (iteration_ns * 1e-9 * gpus * 1e12)
    if reason is None and model_flops and iteration_ns and gpus and peak:
        value = model_flops / (iteration_ns * 1e-9 * gpus * peak * 1e12)
    per_s = tokens / (iteration_ns * 1e-9) if tokens and iteration_ns else None
    return Mfu(value, reason, model_flops, source, iteration_ns, gpus, peak, of, speed, per_s)
