# SPDX-License-Identifier: Apache-2.0
"""Findings of memory in the analysis of traces: of snapshots beside them, else of their events."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from megatron.torch_trace.allocator.answer import MemoryAnswer, answers_of
from megatron.torch_trace.allocator.memory_files import snapshots_of_window
from megatron.torch_trace.allocator.ranks.rank_findings import findings_of_all, rank_memories
from megatron.torch_trace.allocator.ranks.stages import RankMemory
from megatron.torch_trace.analysis.findings import SEVERITIES
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding
from megatron.torch_trace.errors import TorchTraceError
from megatron.torch_trace.files.sources import rank_in_name
from megatron.torch_trace.reader import Trace

_MOST = 16
"""Snapshots that are read for it; of more ranks one of each stage, then as many as fit."""
_FLAG = "profile_memory"
_LARGEST_TRACE = 32 << 20


def memory_beside(analysis: Analysis) -> tuple[RankMemory, ...]:
    """What the analysed ranks' snapshots tell, or their traces where these have memory events.

    What cannot be read is left out: `torch-trace memory` says why.
    """
    answers: list[MemoryAnswer] = []
    for path in _sources(analysis):
        with suppress(TorchTraceError, OSError):
            # A process has one GPU; on others it holds next to nothing.
            answers += answers_of(path)[:1]
    return rank_memories(answers)


def _sources(analysis: Analysis) -> list[Path]:
    """The snapshots in the windows' folders, one for each rank; without any, the traces."""
    folders = {Path(rank.file).absolute().parent for rank in analysis.ranks}
    stages = {rank.rank: rank.coordinates.get("pp", 0) for rank in analysis.ranks}
    found: dict[int, Path] = {}
    for folder in sorted(folders):
        for path in snapshots_of_window(folder):
            rank = rank_in_name(path.name)
            if rank in stages and rank is not None:
                found.setdefault(rank, path)
    if found:
        return [found[rank] for rank in _chosen(sorted(found), stages)]
    traces = {rank.rank: Path(rank.file) for rank in analysis.ranks}
    chosen = [traces[rank] for rank in _chosen(sorted(traces), stages)]
    return [path for path in chosen if _has_memory_events(path)]


def _has_memory_events(trace: Path) -> bool:
    """Whether torch.profiler recorded them, in a trace that is read quickly a second time."""
    with suppress(TorchTraceError, OSError):
        return trace.stat().st_size <= _LARGEST_TRACE and _FLAG in Trace(trace).read_header().flags
    return False


def with_memory_findings(analysis: Analysis, ranks: Sequence[RankMemory]) -> Analysis:
    """The analysis, with the findings of memory among its own."""
    if not ranks:
        return analysis
    own = (
        Finding(one.code, one.severity, one.sentence, one.evidence, one.advice)
        for one in findings_of_all(ranks)
    )
    # Stable: of equal severity those of time come first.
    ordered = sorted((*analysis.findings, *own), key=lambda one: SEVERITIES.index(one.severity))
    return replace(analysis, findings=tuple(ordered))


def _chosen(ranks: Sequence[int], stages: dict[int, int]) -> list[int]:
    if len(ranks) <= _MOST:
        return list(ranks)
    first = {stages[rank]: rank for rank in reversed(ranks)}
    chosen = sorted(first.values())[:_MOST]
    others = [rank for rank in ranks if rank not in chosen]
    return sorted([*chosen, *others[: _MOST - len(chosen)]])
