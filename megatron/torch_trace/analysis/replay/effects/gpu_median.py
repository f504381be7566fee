# SPDX-License-Identifier: Apache-2.0
"""A rank's GPU as fast as those of the ranks that do the same work: no slow clock, no work that the
others do not have."""

from __future__ import annotations

import math

import numpy as np

from megatron.torch_trace.analysis.replay.change import GpuAsMedian
from megatron.torch_trace.analysis.replay.effects.adjustment import Adjustment
from megatron.torch_trace.analysis.replay.effects.cpu_changes import MOST_VARIANTS, peers_of
from megatron.torch_trace.analysis.replay.kernels.kernel_graph import KernelGraph
from megatron.torch_trace.analysis.replay.kernels.peer_segments import FarLonger, median_of
from megatron.torch_trace.columns.intervals import ints


def gpu_as_median(found: KernelGraph, result: Adjustment, change: GpuAsMedian) -> None:
    """The GPU work of a rank, communication aside, as the median of its pipeline stage has it.

    Where some of it takes far longer than on any peer, this alone: the rest is luck.
    """
    position, others = peers_of(found, result, change, change.rank)
    nodes = found.work.nodes(position)
    own = result.duration[nodes]
    columns = found.work.columns(position, others, result.duration)
    median, far = median_of(columns, own), FarLonger.of(own, columns)
    replaced = far.which if far.which.any() else np.ones(len(own), dtype=bool)
    if far.which.any():
        at = np.flatnonzero(far.which)
        result.luck_ns += far.luck * math.sqrt(len(at))
        result.late_work[change.rank] = found.work.rows(position)[at], ints((own - median)[at])
    result.duration[nodes] = np.where(replaced, median, own)
    for column in columns[:MOST_VARIANTS]:
        variant = result.duration.copy()
        variant[nodes] = np.where(replaced, column, own)
        result.may_be(variant)
