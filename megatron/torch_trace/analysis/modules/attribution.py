# SPDX-License-Identifier: Apache-2.0
"""Which module launched each piece of GPU work, in which pass.

The innermost range around the launch, on the thread of the launch, is one answer. The backward
pass has another one: the operator that made the node which launched it lay inside a module.

    main thread    layers.0 [---  mlp [ aten::mm, sequence 7 ]  ---]
    autograd's     layers.0 (backward) [---  MmBackward0, sequence 7 -> launch  ---]

That one is taken where there is no range, or where it leads to a part of the module in whose range
the launch is: `mlp` here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.analysis.modules.graph_replays import NamingLaunches, naming_launches
from megatron.torch_trace.analysis.modules.ranges import ModuleRanges
from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.analysis.timeline.autograd import accumulates, runs_backward
from megatron.torch_trace.analysis.timeline.span_names import BACKWARD, PASSES, RECOMPUTE
from megatron.torch_trace.analysis.timeline.timeline import Timeline, nesting_of
from megatron.torch_trace.columns.intervals import Ints, ints

_CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class Attribution:
    """For each row of `Activity.gpu`.

    Args:
        module: position in `ModuleRanges.paths`, NONE if in no module.
        direction: position in `PASSES`; means nothing without a module.
        by_sequence: the answer came from autograd's sequence numbers.
        replayed, found: rows that a CUDA graph launched; those of them that are known by name.
    """

    module: Ints
    direction: Ints
    by_sequence: npt.NDArray[np.bool_]
    replayed: npt.NDArray[np.bool_]
    found: npt.NDArray[np.bool_]


def attribute_work(timeline: Timeline, ranges: ModuleRanges) -> Attribution:
    """The module and the pass of each row of `timeline.activity.gpu`."""
    ops, launches = timeline.activity.ops, naming_launches(timeline)
    around = ranges.nesting.innermost(launches.track, launches.time)
    nodes = nesting_of(ops, runs_backward(timeline.activity)).innermost(
        launches.track, launches.time
    )
    made, direction = _makers(timeline, ranges, nodes, launches)
    here, there = _of(ranges.module, around), _of(ranges.module, made)
    # A range inside the node is a module that the node runs again, and knows better.
    inside = _of(ranges.rows.start, around) > _of(ops.start, nodes)
    finer = (there != NONE) & ((here == NONE) | (~inside & ranges.is_below(there, here)))
    return Attribution(
        module=ints(np.where(finer, there, here)),
        direction=ints(np.where(finer, direction, _of(ranges.direction, around))),
        by_sequence=finer,
        replayed=launches.replayed,
        found=launches.found,
    )


def _makers(
    timeline: Timeline, ranges: ModuleRanges, nodes: Ints, launches: NamingLaunches
) -> tuple[Ints, Ints]:
    """For each row of gpu the range in which its node was made, or NONE, and the pass."""
    activity = timeline.activity
    ops = activity.ops
    # What makes nodes while a node runs is the forward pass again. That is a checkpoint's own; any
    # other node only needs something that is made again, and says nothing of where that belongs.
    numbered = nesting_of(ops, ops.sequence != NONE).innermost(launches.track, launches.time)
    again = (_of(ops.forward_thread, numbered) == 0) & (nodes != NONE)
    checkpoints = activity.named(ops, lambda name: _CHECKPOINT in name.lower())
    told = ~again | (_of(checkpoints.astype(np.int64), nodes) > 0)
    # A reduction that a finished gradient sets off is of many parameters, of other modules too.
    added = activity.named(ops, accumulates)
    told &= ~(timeline.is_communication & (_of(added.astype(np.int64), nodes) > 0))
    makers = np.where(told, _of(timeline.forward_operators, nodes), NONE)
    rows = np.flatnonzero(makers != NONE)
    found = np.full(len(launches.time), NONE, dtype=np.int64)
    maker = makers[rows]
    found[rows] = ranges.nesting.innermost(ops.track[maker], ops.start[maker])
    passes = np.where(again, PASSES.index(RECOMPUTE), PASSES.index(BACKWARD))
    return found, ints(passes)


def _of(values: Ints, rows: Ints) -> Ints:
    if not len(values):
        return np.full(len(rows), NONE, dtype=np.int64)
    return ints(np.where(rows == NONE, NONE, values[rows]))
