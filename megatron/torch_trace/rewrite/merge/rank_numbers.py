# SPDX-License-Identifier: Apache-2.0
"""The part of `merge` that knows one rank: its new numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count as count_from
from pathlib import Path
from typing import Any

from megatron.torch_trace.analysis.communication.rank_calls import RankCalls, calls_in
from megatron.torch_trace.analysis.timeline.activity import activity_of
from megatron.torch_trace.columns.activity_blocks import tables_of
from megatron.torch_trace.columns.activity_tables import CODES, COLUMNS
from megatron.torch_trace.columns.arguments import SlimEventWithArgs
from megatron.torch_trace.columns.builder import BlockColumns, BlockView, ColumnBuilder
from megatron.torch_trace.columns.joined_columns import JoinedColumns
from megatron.torch_trace.files.sources import RankedTrace
from megatron.torch_trace.format.json_text import text_of, value_of
from megatron.torch_trace.reader import Metadata, Trace
from megatron.torch_trace.reader.event import Identity
from megatron.torch_trace.rewrite.tracks.block_slices import slices_of
from megatron.torch_trace.rewrite.tracks.track_plan import TrackPlan, TrackPlanner, plan_tracks

_PIDS_PER_RANK = 1000
LARGEST_ID = 1 << 53
"""A viewer's numbers are floats: from here on they are no longer exact."""


@dataclass(slots=True)
class RankPlan:
    """How one rank's events change.

    Attributes:
        number, count: this is the `number`-th of `count` ranks.
        first_ns: start of its first slice, as in its file.
        shift_ns: what is added to its times; offset_ns: how much of it aligns its clock.
        pids: its process ids -> new ones.
        tracks: which slices leave their track.
        names: metadata events that name its processes and new tracks.
        unnamed: metadata events that were left out for them, as text.
        calls: its collectives; None if nobody asked, or there are neither steps nor GPU work.
    """

    number: int
    count: int
    rank: int
    path: Path
    metadata: Metadata
    base_ns: int
    first_ns: int
    tracks: TrackPlan
    pids: dict[Identity, int]
    shift_ns: int = 0
    offset_ns: int = 0
    names: list[bytes] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    calls: RankCalls | None = None

    def record(self, base: int) -> dict[str, Any]:
        """What a reader must know to take this rank out of the merged file again."""
        return {
            "rank": self.rank,
            "file": self.path.name,
            "coordinates": self.metadata.coordinates,
            "shift_ns": self.shift_ns,
            "offset_ns": self.offset_ns,
            "processes": [[new, old] for old, new in self.pids.items()],
            "tracks": [
                [self.pids[old[0]], new[1], *old] for new, old in self.tracks.origins.items()
            ],
            "unnamed": self.unnamed,
            "entries": {key: value.decode() for key, value in self.metadata.entries.items()},
        }

    @property
    def prefix(self) -> int:
        """What an id begins with: of 8 ranks, 10 to 17."""
        return _first_prefix(self.count) + self.number

    def id_of(self, identity: Identity) -> Identity:
        """An arrow's or correlation's id, apart from those of other ranks; see `own_id`."""
        if type(identity) is int and identity >= 0:
            number = int(f"{self.prefix}{identity}")
            if number < LARGEST_ID:
                return number
        kind = "n" if type(identity) is int else "s"
        return f"{self.number}:{kind}:{identity}"


def own_id(identity: Identity, count: int) -> tuple[Identity, int]:
    """The inverse of `RankPlan.id_of`: (id in its own file, number of the rank)."""
    if isinstance(identity, int):
        return own_number(identity, count)
    number, kind, text = str(identity).split(":", 2)
    return (int(text) if kind == "n" else text), int(number)


def own_number(identity: int, count: int) -> tuple[int, int]:
    """A number without the rank's prefix, and the number of the rank."""
    text, width = str(identity), len(str(_first_prefix(count)))
    return int(text[width:]), int(text[:width]) - _first_prefix(count)


def _first_prefix(count: int) -> int:
    return int(10 ** len(str(count - 1)))


class _TracksAndActivity(ColumnBuilder):
    """What an analysis reads of a block, and as `rest` which slices it has."""

    def add_rest(self, view: BlockView, found: BlockColumns) -> None:
        found.rest = slices_of(view.block, (view.start, view.dur))


def plan_rank(
    number: int,
    count: int,
    trace: RankedTrace,
    *,
    align: bool,
    workers: int,
    folder: Path | None,
    on_read: Callable[[int], None] | None,
) -> RankPlan:
    """Read a rank's trace once and decide on its numbers; to align, also find its collectives."""
    file = Trace(trace.path, on_read=on_read)
    calls = None
    if align:
        tracks, calls = _tracks_and_calls(file, workers, folder)
    else:
        tracks = plan_tracks(file, workers=workers, folder=folder)
    pids: dict[Identity, int] = {}
    first = (number + 1) * _PIDS_PER_RANK
    # None that the rank has itself: numbers are replaced one after the other.
    free = (new for new in count_from(first) if new not in tracks.processes)
    for pid in sorted(tracks.processes, key=_process_order):
        pids[pid] = next(free)
    plan = RankPlan(
        number=number,
        count=count,
        rank=trace.rank,
        path=trace.path,
        metadata=trace.metadata,
        base_ns=trace.metadata.base_time_ns,
        first_ns=tracks.first_ns,
        tracks=tracks,
        pids=pids,
        calls=calls,
    )
    plan.unnamed = [text.decode() for text in tracks.process_events]
    _name(plan)
    return plan


def _tracks_and_calls(
    file: Trace, workers: int, folder: Path | None
) -> tuple[TrackPlan, RankCalls | None]:
    joined = JoinedColumns(COLUMNS, CODES)
    look = _TracksAndActivity(tables_of(file))
    with TrackPlanner(folder) as planner:
        for part in file.map(look, SlimEventWithArgs, workers=workers, small_results=True):
            planner.add(part.rest)
            joined.add(part)
        tracks = planner.plan(clip=False)
    return tracks, calls_in(activity_of(file, joined), workers=workers)


def _process_order(pid: Identity) -> tuple[bool, int, str]:
    """Real processes first: Perfetto takes a rank's lowest number for its main process."""
    return (not isinstance(pid, int), -(pid if isinstance(pid, int) else 0), str(pid))


def _name(plan: RankPlan) -> None:
    where = " ".join(f"{k}{v}" for k, v in plan.metadata.coordinates.items() if k in "tp pp dp")
    title = f"rank {plan.rank}" + (f" ({where})" if where else "")
    active = {track[0] for track in plan.tracks.active}
    for old, new in plan.pids.items():
        if old not in active:
            continue
        what = plan.tracks.process_kind(old)
        order = plan.number * _PIDS_PER_RANK + new % _PIDS_PER_RANK
        if not isinstance(old, int) or old < 0:
            # The profiler's own rows go below all ranks.
            order += plan.count * _PIDS_PER_RANK
        for kind, args in (
            ("process_name", {"name": f"{title} {what}".strip()}),
            ("process_labels", {"labels": what}),
            ("process_sort_index", {"sort_index": order}),
        ):
            event = {"name": kind, "ph": "M", "pid": new, "tid": 0, "args": args}
            plan.names.append(text_of(event).encode())
    for text in plan.tracks.metadata:
        event = value_of(text)
        if not event["name"].startswith("process"):
            pid, _ = plan.tracks.origins[event["pid"], event["tid"]]
            event["pid"] = plan.pids[pid]
            plan.names.append(text_of(event).encode())
