# SPDX-License-Identifier: Apache-2.0
"""The changes that take away what a finding is about, for a graph to say what that would gain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from megatron.torch_trace.analysis.findings.late_ranks import late_ranks
from megatron.torch_trace.analysis.host.garbage_collections import COLLECTOR
from megatron.torch_trace.analysis.replay.change import (
    LAYERS,
    Change,
    CollectionsScaled,
    CommunicationScaled,
    CopiesScaled,
    CudaGraphs,
    DataLoaderScaled,
    GpuAsMedian,
    LaunchScaled,
    MicroBatches,
    Overlapped,
    RankAsMedian,
    StagesBalanced,
    TinyKernelsScaled,
    VirtualStages,
    WithoutBarriers,
    WithoutSynchronisation,
)
from megatron.torch_trace.analysis.results.analysis import Finding
from megatron.torch_trace.format.categories import is_kernel_launch

_Changes = Change | tuple[Change, ...]

_REMEDIES: Mapping[str, Callable[[Finding], _Changes]] = {
    "straggler": lambda finding: tuple(map(_as_median(finding), late_ranks(finding))),
    "exposed_communication": lambda finding: CommunicationScaled(_dimension(finding), 0.0),
    "launch_bound": lambda finding: _of_launches(finding),
    "garbage_collection": lambda _: CollectionsScaled(0.0),
    "synchronisation": lambda _: WithoutSynchronisation(),
    "memory_copies": lambda _: CopiesScaled("all", 0.0),
    "pageable_copies": lambda _: CopiesScaled("pageable", 0.0),
    "uneven_stages": lambda _: StagesBalanced(),
    "layer_imbalance": lambda _: StagesBalanced(),
    "data_loader": lambda _: DataLoaderScaled(0.0),
    "tiny_kernels": lambda _: TinyKernelsScaled(0.0),
    "barriers": lambda _: WithoutBarriers(),
}
"""Slug of a finding -> its changes. What no change of a graph takes away is not here."""

_GRAPHS = "CUDA graphs"
"""Where a finding advises these, they gain more than launches that cost nothing."""

_CANNOT_TELL = frozenset({"data_loader_without_reserve"})
"""Codes that begin with another's slug, of what costs nothing in the recorded window."""


def remedies_of(finding: Finding) -> tuple[tuple[Change, ...], ...]:
    """Changes of which each takes away the finding's cause, or part of it, as far as it can be.

    The first ones are tried first; what a graph cannot answer is left to the ones behind it.
    """
    if finding.code == "pipeline_bubble":
        return tuple((change,) for change in _of_bubble(finding))
    changes = remedy_of(finding)
    if changes and finding.code == "launch_bound" and _GRAPHS in finding.advice:
        return (CudaGraphs(LAYERS),), changes
    return (changes,) if changes else ()


def remedy_of(finding: Finding) -> tuple[Change, ...]:
    """The changes, together; none where a graph cannot take the finding's cause away."""
    for slug, change in _REMEDIES.items():
        if finding.code in _CANNOT_TELL:
            break
        if finding.code == slug or finding.code.startswith(f"{slug}_"):
            found = change(finding)
            return found if isinstance(found, tuple) else (found,)
    return ()


def _of_bubble(finding: Finding) -> Iterator[Change]:
    """A better schedule; where spans tell of none, the pipeline without any wait."""
    counts = finding.evidence.get("microbatches") or []
    yield VirtualStages(2 * int(finding.evidence.get("chunks") or 1))
    yield StagesBalanced()
    if counts:
        yield MicroBatches(2 * int(counts[-1]))
    yield Overlapped("pp")


def _of_launches(finding: Finding) -> _Changes:
    """Launches that cost nothing, unless something other than a launch holds the CPU up."""
    if "held_by" not in finding.evidence:
        return LaunchScaled(0.0)
    holder = finding.evidence["held_by"] or ""
    if holder == COLLECTOR:
        return CollectionsScaled(0.0)
    return LaunchScaled(0.0) if is_kernel_launch(holder) else ()


def _as_median(finding: Finding) -> Callable[[int], Change]:
    """Of a late rank its GPU, where that works longer, else its CPU."""
    return GpuAsMedian if finding.evidence.get("cause") == "compute" else RankAsMedian


def _dimension(finding: Finding) -> str:
    return str(finding.evidence.get("dimension") or finding.code.rpartition("_")[2])
