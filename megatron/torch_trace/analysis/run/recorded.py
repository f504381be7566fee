# SPDX-License-Identifier: Apache-2.0
"""From paths to every rank on its own, read or taken from where its analysis was kept."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from megatron.torch_trace.analysis.results.analysis import SkippedFile
from megatron.torch_trace.analysis.run.iterations_beside import with_iterations_beside
from megatron.torch_trace.analysis.run.rank import RankOutcome
from megatron.torch_trace.analysis.run.rank_pool import analyse_ranks
from megatron.torch_trace.analysis.run.rank_sources import Gathered, find, gather
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.errors import TorchTraceError, UsageError
from megatron.torch_trace.files.same_rank import same_rank
from megatron.torch_trace.files.selection import listed, of_ranks, one_window
from megatron.torch_trace.files.sources import find_traces, rank_in_name
from megatron.torch_trace.reader.workers import end_early
from megatron.torch_trace.wording import path_text

_FROZEN_ON_PURPOSE = 1000
"""Objects. Python 3.12 begins with some hundred; a program that has frozen its own has more."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What is known of each rank, before all of them are put together.

    Args:
        by_rank: ascending.
        skipped: files that could not be analysed.
        complete: no rank was left out on purpose.
        timelines: what was read of the traces, by file, if it was kept.
    """

    by_rank: Mapping[int, RankOutcome]
    skipped: list[SkippedFile]
    complete: bool
    timelines: Mapping[Path, Timeline] = field(default_factory=dict)


def recorded(
    path: Path | str | Iterable[Path | str],
    *,
    ranks: Iterable[int] | None = None,
    step: int | None = None,
    jobs: int | None = None,
    strict: bool = False,
    use_partials: bool = True,
    on_start: Callable[[list[Path]], None] | None = None,
    on_done: Callable[[Path], None] | None = None,
    on_kept: Callable[[int, int], None] | None = None,
    keeps: Callable[[list[Path]], bool] | None = None,
    on_all_read: Callable[[Mapping[Path, Timeline]], None] | None = None,
) -> Recorded:
    """Every rank's own analysis, read or taken from where it was kept; see `analyze`.

    Args:
        keeps: whether to keep what is read of all these traces, which takes memory.
        on_all_read: gets what is kept once the last trace is read, before that one is analysed.
        the others: see `analyze`.
    """
    wanted = None if ranks is None else set(ranks)
    paths = [path] if isinstance(path, (str, Path)) else list(path)
    sources = find(paths) if use_partials else find_traces(paths)
    skipped = [SkippedFile(path_text(file), reason) for file, reason in sources.skipped]
    traces = of_ranks(one_window(sources.traces), wanted)
    with without_collecting():
        known = Gathered(traces)
        if use_partials:
            known = gather(traces, step=step, strict=strict, on_kept=on_kept)
    skipped += known.skipped
    if on_start:
        on_start(known.traces)
    found = dict(known.outcomes)
    timelines: dict[Path, Timeline] = {}

    def keep(file: Path, timeline: Timeline) -> None:
        timelines[file] = timeline
        if on_all_read and len(timelines) == len(traces):
            # Nobody reads any more: what comes now needs the memory.
            end_early()
            on_all_read(timelines)

    for file, outcome in analyse_ranks(
        known.traces,
        jobs=jobs,
        strict=strict,
        step=step,
        on_done=on_done,
        on_timeline=keep if keeps and keeps(known.traces) else None,
    ):
        if isinstance(outcome, TorchTraceError):
            reason = str(outcome).removeprefix(f"{file}: ")
            skipped.append(SkippedFile(path_text(file), reason))
        else:
            found[file] = outcome
    outcomes = [with_iterations_beside(found[one], one) for one in traces if one in found]
    by_rank = _by_rank(outcomes)
    if wanted is not None:
        absent = sorted(wanted - set(by_rank))
        if absent:
            named = (rank_in_name(trace.name) for trace in sources.traces)
            there = sorted({*by_rank, *(one for one in named if one is not None)})
            raise UsageError(
                f"--rank {absent[0]}: there is no trace of this rank; there are {listed(there)}."
            )
        by_rank = {rank: one for rank, one in by_rank.items() if rank in wanted}
    if not by_rank:
        reasons = [f"{one.file}: {one.reason}" for one in skipped] or ["no trace"]
        raise UsageError(f"nothing could be analysed: {listed(reasons, '; ', most=3)}")
    return Recorded(by_rank, skipped, wanted is None, timelines)


@contextmanager
def without_collecting() -> Iterator[None]:
    """Of many ranks there are a million rows and no garbage: looking for some takes a while."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            # To count what is frozen takes longer than to look at few rows.
            many = gc.get_count()[0] > gc.get_threshold()[0]
            if many and gc.get_freeze_count() < _FROZEN_ON_PURPOSE:
                # What is there now counts as old, as if all of it had been looked at.
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def _by_rank(outcomes: list[RankOutcome]) -> dict[int, RankOutcome]:
    found: dict[int, RankOutcome] = {}
    for outcome in outcomes:
        if outcome.rank is None:
            continue
        if outcome.rank in found:
            files = [Path(one.result.file) for one in outcomes]
            raise same_rank(
                outcome.rank, outcome.result.file, found[outcome.rank].result.file, files
            )
        found[outcome.rank] = outcome
    free = (number for number in range(len(outcomes) + len(found) + 1) if number not in found)
    for outcome in outcomes:
        if outcome.rank is None:
            rank = next(free)
            result = replace(
                outcome.result,
                rank=rank,
                is_rank_known=False,
                is_single=len(outcomes) == 1,
                pipeline=tuple(replace(one, rank=rank) for one in outcome.result.pipeline),
            )
            found[rank] = replace(outcome, rank=rank, result=result)
    return dict(sorted(found.items()))
