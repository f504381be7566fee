# SPDX-License-Identifier: Apache-2.0
"""From paths to the whole answer: every rank on its own, then all of them together."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from megatron.torch_trace.analysis.communication.matching import RankCalls, match
from megatron.torch_trace.analysis.communication.stragglers import (
    RankWaits,
    find_stragglers,
    waits_of,
)
from megatron.torch_trace.analysis.communication.totals import CommunicationRow, bus_bytes
from megatron.torch_trace.analysis.findings import find as find_findings
from megatron.torch_trace.analysis.gpu_work.mfu import compute_mfu
from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult, SkippedFile
from megatron.torch_trace.analysis.results.stage_work import stage_work
from megatron.torch_trace.analysis.results.summary import summarise
from megatron.torch_trace.analysis.run.iterations_beside import with_iterations_beside
from megatron.torch_trace.analysis.run.rank import RankOutcome
from megatron.torch_trace.analysis.run.rank_pool import analyse_ranks
from megatron.torch_trace.analysis.run.rank_sources import Gathered, find, gather
from megatron.torch_trace.columns.intervals import Ints, ints
from megatron.torch_trace.errors import TorchTraceError, UsageError
from megatron.torch_trace.files.selection import listed, of_ranks, one_window
from megatron.torch_trace.files.sources import find_traces
from megatron.torch_trace.wording import path_text


def analyze(
    path: Path | str | Iterable[Path | str],
    *,
    ranks: Iterable[int] | None = None,
    step: int | None = None,
    model_flops: float | None = None,
    jobs: int | None = None,
    strict: bool = False,
    use_partials: bool = True,
    on_start: Callable[[list[Path]], None] | None = None,
    on_done: Callable[[Path], None] | None = None,
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
        on_start, on_done: for progress: all files that are read, and each once it is through.

    Returns:
        The analysis; a file that could not be analysed is in `skipped_files` with its reason.

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
    known = recorded(
        path,
        ranks=ranks,
        step=step,
        jobs=jobs,
        strict=strict,
        use_partials=use_partials,
        on_start=on_start,
        on_done=on_done,
    )
    return known.together(model_flops)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What is known of each rank, before all of them are put together.

    Args:
        by_rank: ascending.
        skipped: files that could not be analysed.
        complete: no rank was left out on purpose.
    """

    by_rank: Mapping[int, RankOutcome]
    skipped: list[SkippedFile]
    complete: bool

    def together(self, model_flops: float | None = None) -> Analysis:
        """The analysis; see `analyze`."""
        with _without_collecting():
            return _together(self.by_rank, self.skipped, model_flops, complete=self.complete)


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
) -> Recorded:
    """Every rank's own analysis, read or taken from where it was kept; see `analyze`."""
    wanted = None if ranks is None else set(ranks)
    paths = [path] if isinstance(path, (str, Path)) else list(path)
    sources = find(paths) if use_partials else find_traces(paths)
    skipped = [SkippedFile(path_text(file), reason) for file, reason in sources.skipped]
    traces = of_ranks(one_window(sources.traces), wanted)
    with _without_collecting():
        known = gather(traces, step=step, strict=strict) if use_partials else Gathered(traces)
    skipped += known.skipped
    if on_start:
        on_start(known.traces)
    found = dict(known.outcomes)
    for file, outcome in analyse_ranks(
        known.traces, jobs=jobs, strict=strict, step=step, on_done=on_done
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
            raise UsageError(
                f"--rank {absent[0]}: there is no trace of this rank; there are "
                f"{listed(sorted(by_rank))}."
            )
        by_rank = {rank: one for rank, one in by_rank.items() if rank in wanted}
    if not by_rank:
        reasons = [f"{one.file}: {one.reason}" for one in skipped] or ["no trace"]
        raise UsageError(f"nothing could be analysed: {listed(reasons, '; ', most=3)}")
    return Recorded(by_rank, skipped, complete=wanted is None)


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Of many ranks there are a million rows and no garbage: looking for some takes a while."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _by_rank(outcomes: list[RankOutcome]) -> dict[int, RankOutcome]:
    found: dict[int, RankOutcome] = {}
    for outcome in outcomes:
        if outcome.rank is None:
            continue
        if outcome.rank in found:
            raise UsageError(
                f"{outcome.result.file} and {found[outcome.rank].result.file}: both are rank "
                f"{outcome.rank}; name only one of them."
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


def _together(
    by_rank: Mapping[int, RankOutcome],
    skipped: list[SkippedFile],
    model_flops: float | None,
    *,
    complete: bool,
) -> Analysis:
    matched = match({rank: outcome.calls for rank, outcome in by_rank.items()})
    bases = {rank: outcome.result.base_ns for rank, outcome in by_rank.items()}
    waits = find_stragglers(matched, bases)
    results = []
    for position, outcome in enumerate(by_rank.values()):
        calls = outcome.calls
        result = outcome.result
        if waits.matched_calls:
            own = waits_of(matched, waits, position, calls.end - calls.start)
            result = _with_waits(result, calls, own)
        results.append(result)
    ranks = tuple(results)
    world_size = max((one.world_size or 0 for one in ranks), default=0) or None
    missing = None
    if world_size and complete and all(one.is_rank_known for one in ranks):
        missing = tuple(rank for rank in range(world_size) if rank not in by_rank)
    recorded = [one.model_flops for one in ranks if one.model_flops]
    summary = summarise(ranks)
    mfu = compute_mfu(
        model_flops=recorded[0] if recorded else model_flops,
        source="trace" if recorded else "--model-flops" if model_flops else None,
        iteration_ns=summary.iteration_ns,
        gpus=world_size,
        device=next((one.device for one in ranks if one.device), None),
        undisturbed_ns=summary.undisturbed_iteration_ns,
        tokens=next((one.tokens for one in ranks if one.tokens), None),
    )
    analysis = Analysis(
        ranks=ranks,
        summary=summary,
        missing_ranks=missing,
        clocks=waits.clocks,
        stragglers=waits.stragglers,
        matched_calls=waits.matched_calls,
        mfu=mfu,
        findings=(),
        skipped_files=tuple(skipped),
        stages=stage_work(ranks),
    )
    return replace(analysis, findings=find_findings(analysis))


def _with_waits(result: RankResult, calls: RankCalls, waits: RankWaits) -> RankResult:
    """The rank's communication, with what only the other ranks can tell."""
    lines = {
        (one.dimension, one.group, one.collective): n for n, one in enumerate(result.communication)
    }
    line_of = ints(
        [lines.get((one.dimension, one.group, one.collective), -1) for one in calls.kinds]
    )
    of = line_of[calls.kind] if len(calls.kinds) else ints([])
    communication = tuple(
        _row_with_waits(line, calls, np.flatnonzero(of == number), waits)
        for number, line in enumerate(result.communication)
    )
    return replace(result, communication=communication, wait_ns=int(waits.wait.sum()))


def _row_with_waits(
    line: CommunicationRow, calls: RankCalls, rows: Ints, waits: RankWaits
) -> CommunicationRow:
    if not waits.matched[rows].any():
        return line
    time = int(waits.shortest[rows].sum())
    algbw = busbw = None
    if line.bytes is not None and line.algbw_gbps is not None and time:
        algbw = line.bytes / time
        busbw = bus_bytes(calls.kinds, calls.kind[rows], calls.bytes[rows]) / time
    return replace(
        line,
        wait_ns=int(waits.wait[rows].sum()),
        algbw_gbps=algbw,
        busbw_gbps=busbw,
        bandwidth_time_ns=time,
    )
