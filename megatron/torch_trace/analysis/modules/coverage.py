# SPDX-License-Identifier: Apache-2.0
"""Where all GPU work is: in modules, in micro-batches outside of modules, or elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.analysis.gpu_work.kernels import BEFORE, NO_LINK, NO_OPERATOR
from megatron.torch_trace.analysis.gpu_work.operator_flops import WorkFlops
from megatron.torch_trace.analysis.modules.attribution import Attribution
from megatron.torch_trace.analysis.modules.ranges import SPANS, ModuleRanges
from megatron.torch_trace.analysis.modules.sums import begun_flops
from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.analysis.timeline.launches import without_link
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.intervals import Ints


@dataclass(frozen=True, slots=True)
class OutsideRow:
    """GPU work in no module by the outermost operator around its launch.

    Args:
        operator: its name, `(no operator)` or `(launched before the trace)`.
        time_ns: sum, cut to the window.
        kernels: pieces of work.
    """

    operator: str
    time_ns: int
    kernels: int


@dataclass(frozen=True, slots=True)
class ModuleAccount:
    """Where all GPU work is, in ns: sums over pieces of work, cut to the window.

    Args:
        gpu_ns: all of it, whoever launched it.
        unattributed_ns: of that, in no module.
        outside: what that is, by time.
        microbatch_ns: launched while the training loop was in a forward or backward micro-batch;
            None without spans of phases.
        microbatch_unattributed_ns: of that, in no module.
        microbatch_loose_compute_ns: of that, no communication; 0 without spans of phases.
        communication_ns: of all work in modules, communication.
        source: what told of modules: `spans` or `stacks`.
        by_sequence_ns: in modules that only autograd's sequence numbers led to.
        replayed, replayed_found: pieces of work that CUDA graphs launched in the window; those of
            them that the trace also has launched one by one, where their module is looked for.
        flops: of all that begins in the window; None if the FLOPs of anything are unknown.
        unattributed_flops: of that, in no module.
    """

    gpu_ns: int
    unattributed_ns: int
    microbatch_ns: int | None
    microbatch_unattributed_ns: int | None
    outside: tuple[OutsideRow, ...]
    source: str = SPANS
    by_sequence_ns: int = 0
    communication_ns: int = 0
    microbatch_loose_compute_ns: int = 0
    replayed: int = 0
    replayed_found: int = 0
    flops: int | None = None
    unattributed_flops: int | None = None


def module_account(
    timeline: Timeline,
    ranges: ModuleRanges,
    attribution: Attribution,
    flops: WorkFlops | None,
    whole: int,
) -> ModuleAccount:
    """The account of one rank.

    Args:
        timeline, ranges, attribution: the work and its modules.
        flops: of the work; None if unknown.
        whole: all GPU work in the window, ns.
    """
    inside, clipped = timeline.in_window, timeline.clipped
    loose = inside & (attribution.module == NONE)
    within = lost = every = others = None
    microbatches = inside & (timeline.microbatch != NONE)
    if timeline.has_microbatches:
        within, lost = int(clipped[microbatches].sum()), int(clipped[microbatches & loose].sum())
    if flops is not None and not flops.unknown[inside].any():
        begun = begun_flops(timeline, flops.flops)
        every, others = int(begun.sum()), int(begun[loose].sum())
    return ModuleAccount(
        gpu_ns=whole,
        unattributed_ns=int(clipped[loose].sum()),
        microbatch_ns=within,
        microbatch_unattributed_ns=lost,
        outside=_outside(timeline, np.flatnonzero(loose)),
        source=ranges.source,
        by_sequence_ns=int(clipped[inside & attribution.by_sequence].sum()),
        communication_ns=int(clipped[inside & ~loose & timeline.is_communication].sum()),
        microbatch_loose_compute_ns=int(
            clipped[microbatches & loose & ~timeline.is_communication].sum()
        ),
        replayed=int((inside & attribution.replayed).sum()),
        replayed_found=int((inside & attribution.found).sum()),
        flops=every,
        unattributed_flops=others,
    )


def _outside(timeline: Timeline, rows: Ints) -> tuple[OutsideRow, ...]:
    activity, launches = timeline.activity, timeline.launches
    outermost = timeline.operators.outermost(launches.track[rows], launches.time[rows])
    sums: dict[str, list[int]] = {}
    unlinked = without_link(activity, launches)[rows]
    works = (outermost, launches.time[rows], unlinked, timeline.clipped[rows])
    for row, launched, is_unlinked, time in zip(
        *(column.tolist() for column in works), strict=True
    ):
        if row == NONE:
            name = NO_LINK if is_unlinked else BEFORE if launched == NONE else NO_OPERATOR
        else:
            name = activity.names[int(activity.ops.name[row])]
        entry = sums.setdefault(name, [0, 0])
        entry[0] += time
        entry[1] += 1
    found = [OutsideRow(name, *values) for name, values in sums.items()]
    return tuple(sorted(found, key=lambda row: (-row.time_ns, row.operator)))
