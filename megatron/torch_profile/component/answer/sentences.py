# SPDX-License-Identifier: Apache-2.0
"""The answer in words: which variant is faster, near which ceiling, how far to trust it."""

from __future__ import annotations

from megatron.torch_profile.component.results import Answer, Result
from megatron.torch_trace.wording import counted, duration, number, percent, size


def head(answer: Answer) -> str:
    """What was measured, and how."""
    ranks = f" on {counted(answer.world_size, 'rank')}" if answer.world_size > 1 else ""
    steps = counted(answer.config.measure, "step")
    flushed = (
        ", the L2 cache overwritten before each step"
        if answer.config.flush_l2 and answer.clock == "CUDA events"
        else ""
    )
    return (
        f"{answer.config.target}: {steps} of each variant{ranks}, {answer.device}, timed by "
        f"{answer.clock}{flushed}."
    )


def verdicts(answer: Answer) -> list[str]:
    """A sentence for each variant that has a baseline."""
    return [_verdict(answer, one) for one in answer.results if one.ratio is not None]


def _verdict(answer: Answer, one: Result) -> str:
    assert one.ratio is not None
    value = one.ratio.value
    times = f"{number(value)} times" if value >= 1 else f"{percent(value)} of"
    said = f"{one.case.name} takes {times} the time of {one.baseline}"
    sure = answer.sure(one)
    if sure is None:
        return f"{said}; the steps are too few to tell whether noise can explain it."
    if not sure:
        return f"{said}; noise can explain the difference."
    return f"{said} (95 % interval {one.ratio.low:.3g} to {one.ratio.high:.3g})."


def drift(answer: Answer) -> str | None:
    """How far the device moved while the variants were measured one after the other."""
    if answer.again is None:
        return None
    first = answer.results[0].case.name
    moved = answer.again.value - 1
    if abs(moved) < 0.005:
        return f"{first}, measured again at the end, takes the same time."
    return (
        f"{first}, measured again at the end, takes {percent(abs(moved))} "
        f"{'more' if moved > 0 else 'less'} time; a difference that is not larger than this "
        "is not called sure."
    )


def ceilings(answer: Answer) -> list[str]:
    """What the device reaches, each dtype once."""
    found = {one.ceilings.dtype: one.ceilings for one in answer.results if one.ceilings}
    return [
        f"This device copies {number(one.bytes_per_s / 1e9)} GB/s and multiplies {dtype} at "
        f"{number(one.flops_per_s / 1e12)} TFLOP/s, as measured here ({one.measured})."
        for dtype, one in found.items()
    ]


def roof(one: Result) -> str:
    """How near a case is to the ceiling that is the lower one for it."""
    if one.roof_share is None or one.ceilings is None or one.work is None or one.summary is None:
        return ""
    least = one.ceilings.least_ns(one.work)
    bound = one.ceilings.bound_by(one.work)
    what = size(one.work.bytes) if bound == "memory" else f"{number(one.work.flops / 1e9)} GFLOP"
    return (
        f"{one.case.name}: at best {duration(least)} ({what}, bound by {bound}); "
        f"{percent(one.roof_share)} of the roof."
    )
