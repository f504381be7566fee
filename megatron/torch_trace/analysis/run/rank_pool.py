# SPDX-License-Identifier: Apache-2.0
"""Ranks analysed side by side, as many as cores and memory allow; one bad rank spoils no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from megatron.torch_trace.analysis.run.rank import RankOutcome, StepError, analyse_rank
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.errors import ReaderDiedError, StrictError, TorchTraceError
from megatron.torch_trace.reader.workers import Workers, are_small, end_early
from megatron.torch_trace.system.cores import MOST_FOR_RANKS, available_cores
from megatron.torch_trace.system.memory import host_memory

_BASE_BYTES = 80 << 20
_BYTES_PER_RAW_BYTE = 0.4
_RATIO = 15
"""How many times smaller a compressed trace is; measured 13 to 20."""

Outcome = tuple[Path, RankOutcome | TorchTraceError]


def analyse_ranks(
    paths: Sequence[Path],
    *,
    jobs: int | None = None,
    strict: bool = False,
    step: int | None = None,
    on_done: Callable[[Path], None] | None = None,
    on_timeline: Callable[[Path, Timeline], None] | None = None,
) -> Iterator[Outcome]:
    """Analyse each trace; yields (path, outcome or the error that says why not), in order.

    Args:
        paths: traces of single ranks.
        jobs: processes; default what cores and memory allow, and one for small traces.
        strict, step: see `analyse_rank`.
        on_done: called with each path once it is through.
        on_timeline: gets what was read of each; then all are read by this process.

    Raises:
        StrictError: under `strict`, of the first damaged trace.
        StepError: no trace can be analysed without the step it lacks.
    """
    one = partial(_attempt, strict=strict, step=step)
    count = jobs or (1 if are_small(paths) else _jobs(paths))
    results: Iterator[Outcome]
    if len(paths) < 2 or count < 2 or on_timeline:
        # Not several ranks, but perhaps several cores: let them share the blocks of a file.
        cores = jobs or available_cores()
        results = (
            (
                path,
                _attempt(
                    path,
                    strict=strict,
                    step=step,
                    workers=cores,
                    on_timeline=partial(on_timeline, path) if on_timeline else None,
                ),
            )
            for path in paths
        )
    else:
        results = _side_by_side(paths, one, min(count, len(paths)))
    for path, outcome in results:
        if isinstance(outcome, (StrictError, StepError)):
            raise outcome
        if on_done:
            on_done(path)
        yield path, outcome
    end_early()


def _attempt(
    path: Path,
    *,
    strict: bool,
    step: int | None,
    workers: int = 1,
    on_timeline: Callable[[Timeline], None] | None = None,
) -> RankOutcome | TorchTraceError:
    try:
        return analyse_rank(
            path, strict=strict, step=step, workers=workers, on_timeline=on_timeline
        )
    except TorchTraceError as error:
        # Errors with arguments of their own do not survive the pipe between processes.
        return _plain(error)
    except OSError as error:
        return TorchTraceError(f"{path}: cannot be read ({error.strerror or error}).")
    except Exception as error:
        # Whatever is in one trace, and whatever befalls its readers, the others go on.
        return TorchTraceError(f"{path}: cannot be analysed ({type(error).__name__}: {error}).")


def _plain(error: TorchTraceError) -> TorchTraceError:
    kind = type(error) if type(error) in (StrictError, StepError) else TorchTraceError
    return kind(str(error))


def _side_by_side(
    paths: Sequence[Path], one: Callable[[Path], RankOutcome | TorchTraceError], count: int
) -> Iterator[Outcome]:
    done = 0
    try:
        for path, outcome in Workers(count, one).map(paths):
            done += 1
            yield path, outcome
        return
    except ReaderDiedError:
        # A process has died, most likely of memory. The rest gets one each, one after the other.
        pass
    for path in paths[done:]:
        try:
            yield from Workers(1, one).map([path])
        except ReaderDiedError:
            yield (
                path,
                TorchTraceError(
                    f"{path}: the process that read this file died, maybe for lack of memory."
                ),
            )


def _jobs(paths: Sequence[Path]) -> int:
    """Bounded by the cores of this process, and by memory for the largest of the traces."""
    largest = max((raw_bytes(path) for path in paths), default=0)
    each = _BASE_BYTES + _BYTES_PER_RAW_BYTE * largest
    fitting = int(0.8 * host_memory().free / each)
    return max(1, min(available_cores(most=MOST_FOR_RANKS), fitting))


def raw_bytes(path: Path) -> int:
    """About how large a trace is uncompressed; 0 where that cannot be told."""
    try:
        size = path.stat().st_size
    except OSError:
        return 0
    return size if path.suffix == ".json" else size * _RATIO
