# SPDX-License-Identifier: Apache-2.0
"""From a list of changes to what they do to the graph of kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from megatron.torch_trace.analysis.replay.change import (
    Change,
    CollectionsScaled,
    CommunicationScaled,
    CopiesScaled,
    CudaGraphs,
    DataLoaderScaled,
    GpuAsMedian,
    KernelsScaled,
    LaunchScaled,
    ModuleScaled,
    OperatorsScaled,
    Overlapped,
    RankAsMedian,
    RecordingCost,
    TinyKernelsScaled,
    WithoutBarriers,
    WithoutSynchronisation,
)
from megatron.torch_trace.analysis.replay.effects import (
    copies,
    cpu_changes,
    gpu_changes,
    gpu_median,
    graph_replays,
    overlap,
)
from megatron.torch_trace.analysis.replay.effects.adjustment import Adjustment
from megatron.torch_trace.analysis.replay.kernels.kernel_graph import KernelGraph
from megatron.torch_trace.errors import UsageError


def adjusted(found: KernelGraph, changes: Sequence[Change]) -> Adjustment:
    """Make changes, in this order.

    Raises:
        UsageError: a change is about what is not in the traces, or not in this graph.
    """
    result = Adjustment.none(found)
    late = RankAsMedian, GpuAsMedian
    result.mended = frozenset(one.rank for one in changes if isinstance(one, late))
    for change in changes:
        make = _MAKERS.get(type(change))
        if make is None:
            raise UsageError(f"{change.text}: the graph of kernels does not know this change.")
        make(found, result, change)
    return result


_MAKERS: dict[type[Change], Callable[[KernelGraph, Adjustment, Any], None]] = {
    RankAsMedian: cpu_changes.rank_as_median,
    GpuAsMedian: gpu_median.gpu_as_median,
    LaunchScaled: cpu_changes.launch,
    CudaGraphs: graph_replays.cuda_graphs,
    OperatorsScaled: cpu_changes.operators,
    RecordingCost: cpu_changes.recording_cost,
    WithoutSynchronisation: cpu_changes.without_waits,
    DataLoaderScaled: cpu_changes.data_loader,
    CollectionsScaled: cpu_changes.garbage_collections,
    TinyKernelsScaled: gpu_changes.tiny_kernels,
    WithoutBarriers: gpu_changes.without_barriers,
    CommunicationScaled: gpu_changes.communication,
    Overlapped: overlap.overlap,
    KernelsScaled: gpu_changes.kernels,
    ModuleScaled: gpu_changes.module,
    CopiesScaled: copies.copies,
}
