# SPDX-License-Identifier: Apache-2.0
"""Phases of the training loop: time of the CPU in them, and the GPU work launched meanwhile.

A phase is a span of `--torch-profile-spans phases` on the thread of the training loop: Megatron's
timers by name, forward and backward of micro-batches, logging, evaluation and checkpoints. Phases
nest, so rows do not add up. Work counts for every phase that the loop was in at its launch,
whichever thread launched it: autograd's does while the loop waits in `backward micro-batch`. What a
CUDA graph of whole iterations replays is launched in no micro-batch: it counts for the phases of
the same kernels in a step without graphs, where the trace holds one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.analysis.modules.graph_replays import naming_launches
from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.analysis.timeline.moment import Moment, longest
from megatron.torch_trace.analysis.timeline.replayed import replayed_rows
from megatron.torch_trace.analysis.timeline.span_names import phase_of
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.intervals import Intervals, Ints, ints


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """All spans of one phase.

    Args:
        phase: the timer's name, `forward micro-batch`, `backward micro-batch`, `logging`, ...
        calls: spans that begin in the window.
        time_ns: of the CPU: their union, cut to the window.
        share: time_ns / window.
        gpu_ns: sum of GPU work launched inside, cut to the window; it may run later.
        kernels: pieces of that work.
        exposed_communication_ns: of gpu_ns, communication beside which nothing computes.
        longest: the longest span.
    """

    phase: str
    calls: int
    time_ns: int
    share: float
    gpu_ns: int
    kernels: int
    exposed_communication_ns: int
    longest: Moment | None = field(default=None, compare=False)


def phase_rows(timeline: Timeline) -> tuple[PhaseRow, ...]:
    """Every phase with a span in the window, by time in ns; phases nest and do not add up.

    Source: docs/computed.md, "Phases".
    """
    activity, window = timeline.activity, timeline.window
    ops, spans = activity.ops, timeline.phase_spans
    spans = spans[(ops.start[spans] < window.end) & (ops.end[spans] > window.start)]
    by_phase: dict[str, list[int]] = {}
    for row, code in zip(spans.tolist(), ops.name[spans].tolist(), strict=True):
        by_phase.setdefault(phase_of(activity.names[code]) or "", []).append(row)
    launched = timeline.in_window & (timeline.launches.track != NONE)
    time, (eager, known) = timeline.launches.time, _eager_launches(timeline)
    found = []
    for phase, rows in by_phase.items():
        # Not cut to the window: work that runs in it may have been launched just before.
        whole = Intervals.of(ops.start[rows], ops.end[rows])
        cpu = whole.clip(window.start, window.end).total
        inside = np.flatnonzero(launched & (whole.holds(time) | (known & whole.holds(eager))))
        found.append(
            PhaseRow(
                phase=phase,
                calls=int(timeline.begin_inside(ints(rows)).sum()),
                time_ns=cpu,
                share=cpu / window.length,
                gpu_ns=int(timeline.clipped[inside].sum()),
                kernels=len(inside),
                exposed_communication_ns=int(timeline.exposed_communication[inside].sum()),
                longest=longest(ops.start[rows], ops.end[rows]),
            )
        )
    return tuple(sorted(found, key=lambda row: (-row.time_ns, row.phase)))


def _eager_launches(timeline: Timeline) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """When kernels that a graph replays outside of micro-batches were launched one by one, and of
    which rows that is known."""
    outside = replayed_rows(timeline) & (timeline.microbatch == NONE)
    if not timeline.has_microbatches or not outside.any():
        return timeline.launches.time, np.zeros(len(outside), dtype=bool)
    naming = naming_launches(timeline)
    return naming.time, naming.found & outside
