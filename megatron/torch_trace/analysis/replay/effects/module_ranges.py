# SPDX-License-Identifier: Apache-2.0
"""Where a module ran: its ranges on the CPU, and the GPU work that it launched."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.analysis.replay.kernels.graph import Bools
from megatron.torch_trace.analysis.replay.kernels.rank_graph import RankGraph
from megatron.torch_trace.analysis.timeline.activity import Rows
from megatron.torch_trace.analysis.timeline.code_columns import present
from megatron.torch_trace.analysis.timeline.span_names import module_span
from megatron.torch_trace.columns.activity_tables import MODULE_FRAME
from megatron.torch_trace.columns.intervals import Intervals

_NUMBER = re.compile(r"_\d+$")


@dataclass(frozen=True, slots=True)
class ModuleRanges:
    """One module, or all of a class, on one rank.

    Args:
        ranges: tables of ranges on the CPU, and which of their rows are the module's.
        work: which GPU rows of the rank's graph it launched.
    """

    ranges: tuple[tuple[Rows, Bools], ...]
    work: Bools


def module_rows(rank: RankGraph, module: str) -> ModuleRanges:
    """Find a module by the end of its path, or by its class."""
    activity, launches = rank.timeline.activity, rank.timeline.launches
    spans = activity.named(activity.ops, lambda name: _is_span(name, module))
    spans &= activity.ops.annotation
    ranges: list[tuple[Rows, Bools]] = [(activity.ops, spans)]
    if not spans.any():
        frames = activity.named(activity.frames, lambda name: _is_frame(name, module))
        ranges = [(activity.frames, frames)]
    work = np.zeros(len(rank.rows), dtype=bool)
    track, time = launches.track[rank.rows], launches.time[rank.rows]
    for rows, chosen in ranges:
        for one in present(rows.track[chosen]):
            here = chosen & (rows.track == one)
            union = Intervals.of(rows.start[here], rows.end[here])
            mine = np.flatnonzero(track == one)
            work[mine] |= union.covered(time[mine], time[mine] + 1) > 0
    return ModuleRanges(tuple(ranges), work)


def _is_span(name: str, module: str) -> bool:
    span = module_span(name)
    if span is None:
        return False
    return span.type == module or span.path == module or span.path.endswith("." + module)


def _is_frame(name: str, module: str) -> bool:
    if not name.startswith(MODULE_FRAME):
        return False
    return _NUMBER.sub("", name.removeprefix(MODULE_FRAME)) == module
