# SPDX-License-Identifier: Apache-2.0
"""GPU work by the module that launched it; forward, backward and recomputation apart.

Modules are the spans that `--torch-profile-spans modules` puts into a trace, or the frames of
Python stacks. `attribution` tells how work finds its module. What was launched in no module, or
before the trace, is unattributed:

    sum of self_ns, backward_self_ns and recompute_self_ns + unattributed_ns = gpu_ns, exactly
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from megatron.torch_trace.analysis.gpu_work.mfu import EIGHT_BIT_SPEED
from megatron.torch_trace.analysis.gpu_work.operator_flops import work_flops
from megatron.torch_trace.analysis.modules.attribution import attribute_work
from megatron.torch_trace.analysis.modules.coverage import ModuleAccount, module_account
from megatron.torch_trace.analysis.modules.ranges import ModuleRanges, find_ranges
from megatron.torch_trace.analysis.modules.sums import (
    COMMUNICATION,
    EIGHT_BIT,
    EXPOSED,
    FLOPS,
    KERNELS,
    TIME,
    UNKNOWN,
    ModuleSums,
    module_sums,
)
from megatron.torch_trace.analysis.timeline.moment import Moment, longest
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.intervals import Ints, ints

_PER_TERA = 1e-3
"""TFLOP/s of one FLOP a ns."""


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """One module, or all modules of one class. Times are ns, sums of GPU work cut to the window.

    Args:
        module: dotted path; type: its class.
        calls: spans, or frames, of the forward pass that begin in the window.
        self_ns: work launched in the forward pass, in no module below it.
        time_ns: the same, modules below it included.
        kernels: pieces of work, modules below included.
        backward_calls, backward_self_ns, backward_time_ns, backward_kernels: the backward pass; it
            can have work without calls, where sequence numbers alone tell of it.
        recompute_calls, recompute_self_ns, recompute_time_ns, recompute_kernels: the forward
            pass run again inside the backward pass, which does not count it.
        total_ns: time_ns + backward_time_ns + recompute_time_ns.
        exposed_communication_ns: of total_ns, communication beside which nothing computes.
        share: total_ns / all GPU work in the window.
        communication_ns: of total_ns, communication, exposed or not.
        flops, backward_flops, recompute_flops: of matrix products and attention, modules below
            included (`flops.py` has the formulas); None if unknown: without shapes in the trace, or
            with a product that has no formula.
        tflops: all FLOPs / total_ns without communication, which may run beside, in TFLOP/s; None
            if unknown or if there are none.
        peak_share: of the GPU's dense peak, in 8 bits for products in 8 bits and in bf16 for all
            others; None if that is unknown.
        longest: its longest span on the CPU, of whichever pass.
    """

    module: str
    type: str
    calls: int
    self_ns: int
    time_ns: int
    kernels: int
    backward_calls: int = 0
    backward_self_ns: int = 0
    backward_time_ns: int = 0
    backward_kernels: int = 0
    recompute_calls: int = 0
    recompute_self_ns: int = 0
    recompute_time_ns: int = 0
    recompute_kernels: int = 0
    total_ns: int = 0
    exposed_communication_ns: int = 0
    share: float = 0.0
    communication_ns: int = 0
    flops: int | None = None
    backward_flops: int | None = None
    recompute_flops: int | None = None
    tflops: float | None = None
    peak_share: float | None = None
    longest: Moment | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Modules:
    """All modules by path, classes by time, and the account; None and empty without spans.

    The rows of `classes` have the class as `type` and, as `module`, nothing. A module inside one
    of its own class is not counted twice.
    """

    rows: tuple[ModuleRow, ...] = ()
    classes: tuple[ModuleRow, ...] = ()
    account: ModuleAccount | None = None


@dataclass(frozen=True, slots=True)
class _Scale:
    """What rows are measured against: all GPU work, ns; the GPU's peak; whether FLOPs are known."""

    gpu_ns: int
    peak_tflops: float | None
    has_flops: bool


def look_at_modules(timeline: Timeline, peak_tflops: float | None = None) -> Modules:
    """Everything about modules.

    Args:
        timeline: one rank.
        peak_tflops: dense peak of its GPU; None if unknown.

    Returns:
        Times in ns, FLOPs of the window, shares of 1. Source: docs/computed.md, "Modules".
    """
    ranges = find_ranges(timeline)
    if ranges is None:
        return Modules()
    attribution = attribute_work(timeline, ranges)
    flops = work_flops(timeline)
    sums = module_sums(timeline, ranges, attribution, flops)
    whole = int(timeline.clipped[timeline.in_window].sum())
    scale = _Scale(whole, peak_tflops, flops is not None)
    moments = _longest(timeline, ranges)
    rows = [
        _row(
            (ranges.paths[n], ranges.types[n]),
            (sums.calls[n], sums.own[n], sums.total[n]),
            scale,
            moments.get(n),
        )
        # A module of which the window holds neither a call nor work is of another step.
        for n in np.flatnonzero(sums.calls.any(axis=1) | sums.total.any(axis=(1, 2))).tolist()
    ]
    account = module_account(timeline, ranges, attribution, flops, whole)
    by_path = tuple(sorted(rows, key=lambda row: row.module))
    return Modules(by_path, _classes(ranges, sums, scale), account)


def _longest(timeline: Timeline, ranges: ModuleRanges) -> dict[int, Moment | None]:
    """By module the longest range that begins in the window."""
    start, end = ranges.rows.start, ranges.rows.end
    begun = np.flatnonzero(timeline.begins_inside(start, end))
    order = begun[np.argsort(ranges.module[begun], kind="stable")]
    modules, first = np.unique(ranges.module[order], return_index=True)
    # Of nothing this is still one part, which belongs to no module.
    parts = np.split(order, first[1:])
    return {
        module: longest(start[part], end[part])
        for module, part in zip(modules.tolist(), parts, strict=False)
    }


def _classes(ranges: ModuleRanges, sums: ModuleSums, scale: _Scale) -> tuple[ModuleRow, ...]:
    kinds = list(dict.fromkeys(ranges.types))
    position = {kind: number for number, kind in enumerate(kinds)}
    own = np.zeros((len(kinds), *sums.own.shape[1:]), dtype=np.int64)
    total, calls = own.copy(), np.zeros((len(kinds), sums.calls.shape[1]), dtype=np.int64)
    kind_of = ints([position[kind] for kind in ranges.types])
    np.add.at(own, kind_of, sums.own)
    np.add.at(calls, kind_of, sums.calls)
    for module, holders in enumerate(sums.holders):
        for holder in {ranges.types[one] for one in holders}:
            total[position[holder]] += sums.own[module]
    found = [
        _row(("", kind), (calls[n], own[n], total[n]), scale)
        for n, kind in enumerate(kinds)
        if calls[n].any() or total[n].any()
    ]
    return tuple(sorted(found, key=lambda row: (-row.total_ns, row.type)))


def _row(
    name: tuple[str, str],
    sums: tuple[Ints, Ints, Ints],
    scale: _Scale,
    moment: Moment | None = None,
) -> ModuleRow:
    calls, own, total = (one.tolist() for one in sums)
    forward, backward, recompute = (
        (calls[n], own[n][TIME], total[n][TIME], total[n][KERNELS]) for n in range(len(calls))
    )
    work = sum(one[TIME] for one in total)
    communication = sum(one[COMMUNICATION] for one in total)
    flops = [one[FLOPS] if scale.has_flops and not one[UNKNOWN] else None for one in total]
    known = sum(one for one in flops if one is not None)
    in_bf16 = known - sum(one[EIGHT_BIT] for one in total) / EIGHT_BIT_SPEED
    tflops = peak_share = None
    if known and work > communication and None not in flops:
        tflops = known / (work - communication) * _PER_TERA
        if scale.peak_tflops:
            peak_share = tflops / scale.peak_tflops * in_bf16 / known
    return ModuleRow(
        *name,
        *forward,
        *backward,
        *recompute,
        total_ns=work,
        exposed_communication_ns=sum(one[EXPOSED] for one in total),
        share=work / scale.gpu_ns if scale.gpu_ns else 0.0,
        communication_ns=communication,
        flops=flops[0],
        backward_flops=flops[1],
        recompute_flops=flops[2],
        tflops=tflops,
        peak_share=peak_share,
        longest=moment,
    )
