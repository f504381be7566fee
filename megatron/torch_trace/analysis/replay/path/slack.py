# SPDX-License-Identifier: Apache-2.0
"""Slack: how much longer something may take before the iteration does.

A node may be as late as everything that waits for it allows, up to the end of the window.
"""

from __future__ import annotations

import numpy as np

from megatron.torch_trace.analysis.replay.kernels.kernel_graph import KernelGraph
from megatron.torch_trace.analysis.replay.kernels.longest_path import LongestPaths
from megatron.torch_trace.columns.intervals import Ints, ints

_EVER = 1 << 61


def node_slack(found: KernelGraph, paths: LongestPaths, weights: Ints, times: Ints) -> Ints:
    """How much later each node may be, ns, without the last rank's end of the window being later.

    Args:
        found: the graph.
        paths: it, made ready.
        weights: of its edges.
        times: when each node is reached.
    """
    duration = found.graph.nodes.duration
    end = max(
        [int(times[rank.marks[-1]]) for rank in found.ranks]
        + [int((times + duration)[rank.last_work].max(initial=0)) for rank in found.ranks]
    )
    last = np.full(len(times), _EVER, dtype=np.int64)
    for rank in found.ranks:
        last[rank.marks[-1]] = end
        last[rank.last_work] = end - duration[rank.last_work]
    latest = paths.latest(weights, last)
    return ints(np.where(latest < _EVER // 2, latest - times, _EVER))


def weighted_median(values: Ints, weights: Ints) -> int:
    """The value at which half of the weight is reached; 0 of nothing."""
    if not len(values) or not int(weights.sum()):
        return 0
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return int(values[order][np.searchsorted(reached, reached[-1] / 2)])
