# SPDX-License-Identifier: Apache-2.0
"""Which of very many ranks a timeline shows: browsers fail by their number, not their bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from megatron.torch_trace.analysis.findings.late_ranks import late_ranks
from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.files.sources import rank_in_name
from megatron.torch_trace.wording import ranks

MOST_RANKS = 16
"""Tracks of so many ranks can still be read, and Perfetto draws them in seconds."""


def chosen(traces: Sequence[Path], analysis: Analysis | None) -> list[Path]:
    """The traces that a timeline shows.

    Args:
        traces: of one window.
        analysis: of the same traces, which tells the interesting ones; None if there is none.

    Returns:
        All of them where they are few. Else stragglers, ranks that wait for them, the lowest rank
        of each stage and of each other coordinate, the least and the most idle; without an analysis
        some at equal distances.
    """
    if len(traces) <= MOST_RANKS:
        return list(traces)
    files = by_rank(traces, analysis)
    shown = {files[rank] for rank in needed(files, analysis)}
    return [trace for trace in traces if trace in shown] or list(traces[:MOST_RANKS])


def by_rank(traces: Sequence[Path], analysis: Analysis | None) -> dict[int, Path]:
    """Rank -> its trace, as the analysis has found them; without one by the names of the files.

    Args:
        traces, analysis: see `chosen`.
    """
    if analysis is None:
        return {rank: trace for trace in traces if (rank := rank_in_name(trace.name)) is not None}
    given = {trace.absolute(): trace for trace in traces}
    files = ((rank.rank, Path(rank.file).absolute()) for rank in analysis.ranks)
    return {rank: given[file] for rank, file in files if file in given}


def needed(files: Mapping[int, Path], analysis: Analysis | None) -> list[int]:
    """The ranks that a timeline shows, the most needed first; see `chosen`."""
    if analysis is None:
        step = max(1.0, (len(files) - 1) / (MOST_RANKS - 1))
        ordered = sorted(files)
        return [ordered[round(n * step)] for n in range(min(MOST_RANKS, len(ordered)))]
    wanted = [rank for rank in dict.fromkeys(_interesting(analysis)) if rank in files]
    return wanted[:MOST_RANKS]


def _interesting(analysis: Analysis) -> Iterator[int]:
    """Ranks by how much they tell, some of them again and again."""
    stragglers = [one for one in analysis.findings if one.code == "straggler"]
    for one in stragglers:
        yield from late_ranks(one)[:2]
        yield from (one.evidence.get("waiting_ranks") or [])[:1]
    seen: set[tuple[str, int]] = set()
    for dimension in ("pp", "tp", "ep", "cp", "dp"):
        for rank in analysis.ranks:
            coordinate = (dimension, rank.coordinates.get(dimension, 0))
            if coordinate not in seen:
                seen.add(coordinate)
                yield rank.rank
        yield from analysis.summary.extremes


def sentence(shown: Sequence[int], count: int) -> str:
    """What is shown, and how to see others: `The timeline shows 16 of 512 ranks (0, 1, ...) ...`"""
    return (
        f"The timeline shows {len(shown)} of {count:,} ranks ({ranks(tuple(shown), most=8)}): "
        "those that are late, some that wait for them, and one of each kind. The page loads others "
        "when they are clicked or named; --rank R, which can be given several times, shows only "
        "those."
    )
