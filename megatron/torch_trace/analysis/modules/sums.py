# SPDX-License-Identifier: Apache-2.0
"""GPU work and FLOPs summed by module and pass, and what belongs to modules above."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.analysis.gpu_work.operator_flops import WorkFlops
from megatron.torch_trace.analysis.modules.attribution import Attribution
from megatron.torch_trace.analysis.modules.ranges import ModuleRanges
from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.analysis.timeline.span_names import PASSES
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.intervals import Ints, ints

TIME, KERNELS, COMMUNICATION, EXPOSED, FLOPS, EIGHT_BIT, UNKNOWN = MEASURES = range(7)
"""ns, pieces of work, ns, ns, FLOPs, of these in 8 bits, products of unknown FLOPs."""


@dataclass(frozen=True, slots=True)
class ModuleSums:
    """Work in the window.

    Args:
        own: modules x passes x measures: what lies in no module below.
        total: the same, modules below it included.
        calls: modules x passes: ranges that begin in the window.
        holders: of each module itself and those it is part of: whose total its own work is in.
    """

    own: Ints
    total: Ints
    calls: Ints
    holders: list[tuple[int, ...]]


def module_sums(
    timeline: Timeline, ranges: ModuleRanges, attribution: Attribution, flops: WorkFlops | None
) -> ModuleSums:
    """Sums over the work in the window.

    Args:
        timeline: of one rank.
        ranges: of its modules.
        attribution: of its work.
        flops: of its work; None if they are unknown, which leaves these measures 0.
    """
    rows = np.flatnonzero(timeline.in_window & (attribution.module != NONE))
    at = attribution.module[rows], attribution.direction[rows]
    own = np.zeros((len(ranges.paths), len(PASSES), len(MEASURES)), dtype=np.int64)
    measures = {
        TIME: timeline.clipped,
        KERNELS: np.ones_like(timeline.clipped),
        COMMUNICATION: np.where(timeline.is_communication, timeline.clipped, 0),
        EXPOSED: timeline.exposed_communication,
    }
    if flops is not None:
        measures |= {
            FLOPS: begun_flops(timeline, flops.flops),
            EIGHT_BIT: begun_flops(timeline, flops.eight_bit),
            UNKNOWN: ints(flops.unknown),
        }
    for measure, values in measures.items():
        np.add.at(own[:, :, measure], at, values[rows])
    total = own.copy()
    holder = ints([one for above in ranges.above for one in above])
    part = np.repeat(np.arange(len(own)), [len(above) for above in ranges.above])
    np.add.at(total, holder, own[part])
    calls = np.zeros((len(ranges.paths), len(PASSES)), dtype=np.int64)
    begun = timeline.begins_inside(ranges.rows.start, ranges.rows.end) & ~ranges.is_rest
    np.add.at(calls, (ranges.module[begun], ranges.direction[begun]), 1)
    return ModuleSums(own, total, calls, [(n, *above) for n, above in enumerate(ranges.above)])


def begun_flops(timeline: Timeline, flops: Ints) -> Ints:
    """FLOPs of each piece of work; 0 if it begins outside the window.

    So operators count whole, each in one window, where time is cut at the window's edges.
    """
    start, window = timeline.activity.gpu.start, timeline.window
    begun = (start >= window.start) & (start < window.end)
    return ints(np.where(begun, flops, 0))
