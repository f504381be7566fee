# SPDX-License-Identifier: Apache-2.0
"""One rank, from its file to its part of the timeline: what a worker process does.

The part is written with times that count from the rank's own first event. Where that lies on the
common timeline is known only when all ranks have been read; it is told by the few packets that are
put before the part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from megatron.torch_trace.analysis.communication.collectives import attribute
from megatron.torch_trace.analysis.communication.rank_calls import RankCalls, rank_calls
from megatron.torch_trace.analysis.timeline.activity import NONE, activity_of
from megatron.torch_trace.analysis.timeline.steps import MergedTraceError
from megatron.torch_trace.analysis.timeline.timeline import timeline_of
from megatron.torch_trace.errors import StrictError, TorchTraceError, UsageError
from megatron.torch_trace.files.sources import rank_of
from megatron.torch_trace.files.writer import OutputFile
from megatron.torch_trace.format.tracks import Track
from megatron.torch_trace.perfetto.blocks import TimelineBuilder, TimelineEvent
from megatron.torch_trace.perfetto.events import JoinedTimeline, RankEvents
from megatron.torch_trace.perfetto.part import PartWriter
from megatron.torch_trace.perfetto.streams import StreamLabel, label_streams
from megatron.torch_trace.perfetto.time_order import Layout
from megatron.torch_trace.perfetto.tracks import Planner, RankTitle
from megatron.torch_trace.reader import Damage, Trace
from megatron.torch_trace.wording import counted


@dataclass(frozen=True, slots=True)
class RankJob:
    """What a process must know to convert a rank.

    Args:
        number: index of the rank among those that are shown.
        fallback: a number that tells the trace apart if neither it nor its name tells a rank.
        path: its trace.
        part: file to write.
        output: the timeline that it is a part of.
        args: which arguments to keep.
        strict, workers: see `Trace`.
    """

    number: int
    fallback: int
    path: Path
    part: Path
    output: Path
    args: str
    strict: bool
    workers: int

    def with_workers(self, count: int) -> RankJob:
        return replace(self, workers=count)


@dataclass(frozen=True, slots=True)
class RankPart:
    """What a process has written, and what is still needed for the whole.

    Args:
        layout: what lies where in its part.
        first_ns: its first event, as in its file, where its part's clock shows 0.
        base_ns: the file's base time, 0 if it has none.
        calls: its collectives, to align clocks; None for a trace without GPU work and steps.
        slices: slices and instants written; arrows: arrows written.
        crossing: slices that crossed others and are on lanes of their own.
    """

    job: RankJob
    rank: int
    layout: Layout
    first_ns: int
    base_ns: int
    calls: RankCalls | None
    slices: int
    arrows: int
    crossing: int
    packets: int
    raw_bytes: int
    written_bytes: int
    damage: Damage
    notes: tuple[str, ...]

    @property
    def sequence(self) -> int:
        return self.job.number + 1


def convert_rank(job: RankJob, on_read: Callable[[int], None] | None = None) -> RankPart:
    """Read a trace and write its part."""
    trace = Trace(job.path, strict=job.strict, on_read=on_read)
    joined = JoinedTimeline()
    look = TimelineBuilder(job.args)
    for block in trace.map(look, TimelineEvent, workers=job.workers, small_results=True):
        joined.add(block)
    found = joined.finish()
    timeline = timeline_of(activity_of(trace, joined.activity))
    calls = None
    labels: Mapping[Track, StreamLabel] = {}
    main = None
    if timeline is not None:
        attributed = attribute(timeline)
        labels = label_streams(timeline, attributed)
        calls = rank_calls(timeline, attributed)
        if timeline.window.track != NONE:
            main = timeline.activity.tracks[timeline.window.track]
    metadata = trace.metadata
    if metadata.merged is not None:
        raise MergedTraceError(job.path)
    known = rank_of(metadata, job.path)
    rank = job.fallback if known is None else known
    unknown = job.path.name if known is None else None
    title = RankTitle(rank, metadata.world_size or 0, metadata.coordinates, main, unknown)
    planner = Planner(job.number, title, found, labels)
    writer = PartWriter(job.number + 1, found, planner, timeline)
    with OutputFile(job.part, named=job.output) as sink:
        layout = writer.write(sink.write)
    return RankPart(
        job=job,
        rank=rank,
        layout=layout,
        first_ns=found.first_ns,
        base_ns=metadata.base_time_ns,
        calls=calls,
        slices=len(found.events["start"]),
        arrows=writer.arrows,
        crossing=writer.crossing,
        packets=writer.packets,
        raw_bytes=trace.raw_bytes,
        written_bytes=sink.written,
        damage=trace.damage,
        notes=tuple(_notes(job.path, found, writer.lost_arrows)),
    )


def attempt_rank(job: RankJob) -> RankPart | TorchTraceError:
    """The same in another process: errors with arguments of their own do not survive the way."""
    try:
        return convert_rank(job)
    except TorchTraceError as error:
        kinds = (StrictError, UsageError, TorchTraceError)
        return next(kind for kind in kinds if isinstance(error, kind))(str(error))


def _notes(path: Path, found: RankEvents, lost_arrows: int) -> Iterator[str]:
    if found.left_out:
        phases = ", ".join(
            f"{count:,} of phase {phase or '?'}" for phase, count in sorted(found.left_out.items())
        )
        yield f"{path}: {phases} are neither slices, instants nor arrows and were left out."
    lost = found.odd + found.without_start
    if lost:
        yield f"{path}: {counted(lost, 'event')} left out: without a time, or impossibly far away."
    if found.overrunning:
        yield (
            f"{path}: {counted(found.overrunning, 'kernel')} cut short, which ran more than a "
            "second into the next kernel of the same stream."
        )
    if lost_arrows:
        yield f"{path}: {counted(lost_arrows, 'arrow')} left out, because one end is on no slice."
