# SPDX-License-Identifier: Apache-2.0
"""`convert`: traces of one or many ranks as one Perfetto timeline that begins at 0."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from megatron.torch_trace.analysis.communication.common_timebase import (
    RankTimes,
    Timebase,
    common_timebase,
)
from megatron.torch_trace.errors import ReaderDiedError, TorchTraceError, UsageError
from megatron.torch_trace.files.atomic import working_folder
from megatron.torch_trace.files.same_rank import same_rank
from megatron.torch_trace.files.selection import one_window
from megatron.torch_trace.files.sources import find_traces, rank_in_name, skipped_lines
from megatron.torch_trace.files.writer import STDOUT, OutputFile
from megatron.torch_trace.perfetto import descriptors
from megatron.torch_trace.perfetto.arguments import CHOICES, SOME
from megatron.torch_trace.perfetto.rank import RankJob, RankPart, attempt_rank, convert_rank
from megatron.torch_trace.perfetto.time_order import RankFile, Wrapper, in_order
from megatron.torch_trace.reader import Damage, available_cores
from megatron.torch_trace.reader.workers import Workers, are_small
from megatron.torch_trace.rewrite.decompression import estimated_raw_bytes

OnProgress = Callable[[float], None]
"""Called with the part that is done, 0 to 1."""

_SMALLER = 8
"""How many times smaller than JSON a plain timeline and its parts are together, at least."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """What `convert` did.

    Args:
        output: the timeline.
        offset_ns: rank -> what is added to times of its trace (ns since the trace's base time, as
            in an analysis) to find them on the timeline.
        clock_ns: rank -> how much of that aligns its clock with the others'; None if unknown.
        slices: slices and instants; arrows: those with both ends.
        crossing: slices that crossed others and are on lanes of their own.
        packets: of the timeline.
        raw_bytes: uncompressed size of what was read.
        written_bytes: uncompressed size of the timeline.
        damage: of each rank's file, only where there was any.
        notes: what the user should know, a sentence each.
    """

    output: Path
    offset_ns: Mapping[int, int]
    clock_ns: Mapping[int, int | None]
    slices: int
    arrows: int
    crossing: int
    packets: int
    raw_bytes: int
    written_bytes: int
    damage: Mapping[Path, Damage]
    notes: tuple[str, ...]

    @property
    def ranks(self) -> list[int]:
        return list(self.offset_ns)


def convert(
    paths: Path | str | Iterable[Path | str],
    output: Path | str,
    *,
    args: str = SOME,
    on_progress: OnProgress | None = None,
    force: bool = False,
    strict: bool = False,
    jobs: int | None = None,
) -> Conversion:
    """Write the traces of one window, aligned in time, as one timeline for Perfetto.

    Args:
        paths: traces, or folders of them.
        output: `.gz` and `.zst` are compressed; `-` is standard output.
        args: which arguments of events to keep: "some" (what one looks for), "all" or "none".
        on_progress: called with the part that is done, 0 to 1.
        force: replace an existing file.
        strict: raise StrictError at the first fault of a trace.
        jobs: processes; None for the cores that this job may use, at most 4.

    Returns:
        What was written: offsets and clocks in ns, sizes in bytes.

    Raises:
        UsageError: a path does not exist, traces are of several windows, two are of one rank, or
            the output exists.
        StrictError: see `strict`.
        TorchTraceError: the disk is too small, or a trace changed while it was read.
    """
    if args not in CHOICES:
        raise UsageError(f"--args {args}: must be one of {', '.join(CHOICES)}.")
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    sources = find_traces(given)
    traces = one_window(sources.traces)
    expected = sum(map(estimated_raw_bytes, traces)) // _SMALLER
    sink = OutputFile(output, force=force, expected_bytes=expected, compressed=True)
    to_stdout = Path(output) == STDOUT
    near = Path(tempfile.gettempdir(), "torch-trace") if to_stdout else Path(output).absolute()
    with working_folder(near) as folder:
        work = _jobs_of(traces, folder, Path(output), args, strict)
        parts = sorted(_convert_ranks(work, jobs, on_progress), key=lambda part: part.rank)
        _refuse_twins(parts)
        timebase = _timebase(parts)
        with sink:
            zeros = {part.sequence: _zero(part, timebase) for part in parts}
            wrapper = Wrapper(Path(output))
            sink.write(wrapper.add(descriptors.clocks(zeros, timebase.epoch_ns)))
            files = [RankFile(one.job.part, one.layout, zeros[one.sequence]) for one in parts]
            for packets in in_order(files):
                sink.write(wrapper.add(packets))
            sink.write(wrapper.end())
    return Conversion(
        output=Path(output),
        offset_ns=timebase.offset_ns,
        clock_ns=timebase.clock_ns,
        slices=sum(part.slices for part in parts),
        arrows=sum(part.arrows for part in parts),
        crossing=sum(part.crossing for part in parts),
        packets=sum(part.packets for part in parts),
        raw_bytes=sum(part.raw_bytes for part in parts),
        written_bytes=sum(part.written_bytes for part in parts),
        damage={part.job.path: part.damage for part in parts if part.damage},
        notes=(
            *skipped_lines(sources.skipped),
            *(note for part in parts for note in part.notes),
            *timebase.notes,
        ),
    )


def _jobs_of(
    paths: Sequence[Path], folder: Path, output: Path, args: str, strict: bool
) -> list[RankJob]:
    """Numbered by rank, as far as names tell it, so that processes' numbers are in order too."""
    named = [rank_in_name(path.name) for path in paths]
    free = iter(sorted(set(range(len(paths))) - set(named)))
    ranks = [next(free) if rank is None else rank for rank in named]
    return [
        RankJob(
            number=number,
            fallback=rank,
            path=path,
            part=folder / str(number),
            output=output,
            args=args,
            strict=strict,
            workers=1,
        )
        for number, (rank, path) in enumerate(sorted(zip(ranks, paths, strict=True)))
    ]


def _convert_ranks(
    work: list[RankJob], jobs: int | None, on_progress: OnProgress | None
) -> Iterable[RankPart]:
    """Several ranks side by side; the blocks of a single one."""
    count = jobs or (1 if are_small(job.path for job in work) else available_cores())
    sizes = [job.path.stat().st_size if job.path.is_file() else 0 for job in work]
    progress = _Progress(sum(sizes), on_progress)
    if len(work) == 1 or count == 1:
        for job in work:
            yield convert_rank(job.with_workers(count), progress.add)
        return
    done = 0
    try:
        for _, part in Workers(min(count, len(work)), attempt_rank).map(work):
            if isinstance(part, TorchTraceError):
                raise part
            progress.add(sizes[done])
            done += 1
            yield part
    except ReaderDiedError as error:
        raise TorchTraceError(
            f"{work[done].path}: the process that read this file died, maybe for lack of "
            "memory; try -j 1."
        ) from error


class _Progress:
    def __init__(self, total: int, on_progress: OnProgress | None) -> None:
        self._total, self._tell, self._done = max(total, 1), on_progress, 0

    def add(self, size: int) -> None:
        self._done += size
        if self._tell:
            self._tell(min(1.0, self._done / self._total))


def _refuse_twins(parts: Sequence[RankPart]) -> None:
    for one, other in pairwise(parts):
        if one.rank == other.rank:
            raise same_rank(one.rank, one.job.path, other.job.path, [p.job.path for p in parts])


def _timebase(parts: Sequence[RankPart]) -> Timebase:
    return common_timebase(
        {
            part.rank: RankTimes(part.base_ns, part.first_ns if part.slices else None, part.calls)
            for part in parts
        }
    )


def _zero(part: RankPart, timebase: Timebase) -> int:
    """Where the part's clock shows 0, ns of the timeline."""
    return part.first_ns + timebase.offset_ns[part.rank]
