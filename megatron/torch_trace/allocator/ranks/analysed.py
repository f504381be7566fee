# SPDX-License-Identifier: Apache-2.0
"""Findings of memory in the analysis of traces that have snapshots beside them."""

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

_MOST = 16
"""Snapshots that are read for it; of more ranks one of each stage, then as many as fit."""


def snapshots_beside(analysis: Analysis) -> list[Path]:
    """The snapshots of the analysed ranks in their windows' folders, one for each rank."""
    folders = {Path(rank.file).absolute().parent for rank in analysis.ranks}
    stages = {rank.rank: rank.coordinates.get("pp", 0) for rank in analysis.ranks}
    found: dict[int, Path] = {}
    for folder in sorted(folders):
        for path in snapshots_of_window(folder):
            rank = rank_in_name(path.name)
            if rank in stages and rank is not None:
                found.setdefault(rank, path)
    return [found[rank] for rank in _chosen(sorted(found), stages)]


def memory_beside(analysis: Analysis) -> tuple[RankMemory, ...]:
    """What the snapshots beside the analysed traces tell, rank by rank.

    A snapshot that cannot be read is left out: `torch-trace memory` says why.
    """
    answers: list[MemoryAnswer] = []
    for path in snapshots_beside(analysis):
        with suppress(TorchTraceError, OSError):
            # A process has one GPU; on others it holds next to nothing.
            answers += answers_of(path)[:1]
    return rank_memories(answers)


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
