# SPDX-License-Identifier: Apache-2.0
"""The analysis of traces with its findings of memory: of snapshots beside them, else of events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron.torch_trace.allocator.memory_files import snapshots_of_window
from megatron.torch_trace.analysis.findings import SEVERITIES
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding
from megatron.torch_trace.analysis.run import analyse
from megatron.torch_trace.errors import TorchTraceError
from megatron.torch_trace.files.sources import rank_in_name
from megatron.torch_trace.reader import Trace

if TYPE_CHECKING:
    from megatron.torch_trace.allocator.ranks.stages import RankMemory

_MOST = 16
"""Snapshots that are read for it; of more ranks one of each stage, then as many as fit."""
_FLAG = "profile_memory"
_LARGEST_TRACE = 32 << 20


def analyze(
    path: Path | str | Iterable[Path | str],
    *,
    ranks: Iterable[int] | None = None,
    step: int | None = None,
    model_flops: float | None = None,
    jobs: int | None = None,
    strict: bool = False,
    use_partials: bool = True,
    gains: bool | None = False,
    on_start: Callable[[list[Path]], None] | None = None,
    on_done: Callable[[Path], None] | None = None,
    on_kept: Callable[[int, int], None] | None = None,
) -> Analysis:
    """Where the time of an iteration went, over all ranks whose traces are given.

    Args:
        path: a trace, a folder of them, or several of either; one window of one run.
        ranks: only these; None for all.
        step: only this step, by its number in the trace.
        model_flops: FLOPs of the model in one iteration over all GPUs, where the traces do not hold
            them.
        jobs: processes; None for what cores and memory allow.
        strict: raise StrictError at the first damage instead of working on what is whole.
        use_partials: take what an earlier analysis kept of a trace instead of reading it; the
            result is the same, also where the trace itself is gone.
        gains: find out what each finding would gain; None: where that is cheap, since the traces
            are read anyway and are small.
        on_start, on_done: for progress: all files that are read, and each once it is through.
        on_kept: for progress before that: how many traces were looked at for what is kept of them,
            and how many there are.

    Returns:
        The analysis: times in ns, shares of 1, sizes in bytes, bandwidths in decimal GB/s; every
        number is defined in docs/computed.md. Findings of memory are among its findings where the
        window has allocator snapshots or memory events. A file that could not be analysed is in
        `skipped_files` with its reason.

    Raises:
        UsageError: a path does not exist, two traces are of the same rank, a rank or step is not
            there, or no file could be analysed.
        StrictError: see `strict`.

    Example:
        analysis = torch_trace.analyze("torch_profile/20261127-221810/iter-0000003")
        for finding in analysis.findings:
            print(finding.title, finding.advice)
        print(analysis.to_polars()["communication"])
    """
    found, _ = analysed_with_memory(
        path,
        ranks=ranks,
        step=step,
        model_flops=model_flops,
        jobs=jobs,
        strict=strict,
        use_partials=use_partials,
        gains=gains,
        on_start=on_start,
        on_done=on_done,
        on_kept=on_kept,
    )
    return found


def analysed_with_memory(
    path: Path | str | Iterable[Path | str], *, step: int | None = None, **options: Any
) -> tuple[Analysis, tuple[RankMemory, ...]]:
    """The analysis with its findings of memory, and what tells of the ranks' memory.

    A snapshot is of a whole window: of a single step none is read.

    Args:
        path: see `analyze`.
        step: see `analyze`.
        options: the others of `analyze`.
    """
    analysis = analyse.analyze(path, step=step, **options)
    ranks = memory_beside(analysis) if step is None else ()
    return with_memory_findings(analysis, ranks), ranks


def memory_beside(analysis: Analysis) -> tuple[RankMemory, ...]:
    """What the analysed ranks' snapshots tell, or their traces where these have memory events.

    What cannot be read is left out: `torch-trace memory` says why.
    """
    sources = _sources(analysis)
    if not sources:
        return ()
    # Imported here: most windows have neither.
    from megatron.torch_trace.allocator.answer import MemoryAnswer, answers_of
    from megatron.torch_trace.allocator.ranks.rank_findings import rank_memories

    answers: list[MemoryAnswer] = []
    for path in sources:
        with suppress(TorchTraceError, OSError):
            # A process has one GPU; on others it holds next to nothing.
            answers += [one.without_history() for one in answers_of(path)[:1]]
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
    """The analysis with what `memory_beside` tells, by severity."""
    if not ranks:
        return analysis
    from megatron.torch_trace.allocator.ranks.rank_findings import findings_of_all

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
