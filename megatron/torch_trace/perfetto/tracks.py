# SPDX-License-Identifier: Apache-2.0
"""How one rank is laid out: its GPU with named streams, its CPU as a process with threads.

rank 00 GPU (tp0 pp0 dp0)          annotations; Perfetto sorts such rows by name, so ranks too
    rank 00 stream 7 compute       what mostly runs there
    rank 00 stream 31 pp p2p
rank 00 CPU
    rank 00 main thread 880 (python3)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatron.torch_trace.errors import TorchTraceError
from megatron.torch_trace.format.categories import GPU_WORK
from megatron.torch_trace.format.integer_arrays import distinct
from megatron.torch_trace.format.tracks import Track
from megatron.torch_trace.perfetto import descriptors
from megatron.torch_trace.perfetto.events import RankEvents
from megatron.torch_trace.perfetto.streams import StreamLabel

_TRACKS_PER_RANK = 1 << 16
_THREADS_PER_RANK = 10_000
_LAST = 1 << 20
GPU_ANNOTATIONS = "gpu_user_annotation"


@dataclass(slots=True)
class Shown:
    """A row of the timeline.

    Args:
        uuid: Perfetto's number of it.
        name: what it is called.
        parent: uuid of the row above, of which another lane becomes a sibling; 0 for a thread,
            whose lanes become its children.
        order: among the siblings.
    """

    uuid: int
    name: str
    parent: int = 0
    order: int = 0


@dataclass(slots=True)
class TrackPlan:
    """Rows of one rank.

    Args:
        rows: those that hold slices.
        row_of: for each track of the file, its row; second column: of its GPU annotations.
        descriptors: packets' contents that describe all rows.
        roots: device -> uuid of its row, below which counters go.
    """

    rows: list[Shown] = field(default_factory=list)
    row_of: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))
    descriptors: list[bytes] = field(default_factory=list)
    roots: dict[Any, int] = field(default_factory=dict)


@dataclass(slots=True)
class RankTitle:
    """How a rank is called.

    Args:
        rank: its number.
        world_size: 0 if it is not known.
        coordinates: its index in the parallel dimensions.
        main: the thread of the training loop, if it is known.
        instead: what it is called where neither the trace nor its name tells the rank.
    """

    rank: int
    world_size: int
    coordinates: Mapping[str, int]
    main: Track | None = None
    instead: str | None = None

    @property
    def short(self) -> str:
        if self.instead is not None:
            return f"rank unknown: {self.instead}"
        digits = max(2, len(str(self.world_size - 1)))
        return f"rank {self.rank:0{digits}d}"

    @property
    def where(self) -> str:
        named = [
            f"{name}{at}" for name, at in self.coordinates.items() if name in ("tp", "pp", "dp")
        ]
        return f" ({' '.join(named)})" if named else ""


class Planner:
    """Decides on the rows of one rank.

    Args:
        number: index of the rank among those that are shown.
        title: its name.
        found: its events.
        labels: track -> what its stream mostly does.
    """

    def __init__(
        self, number: int, title: RankTitle, found: RankEvents, labels: Mapping[Track, StreamLabel]
    ) -> None:
        self.number, self.title, self.found, self.labels = number, title, found, labels
        self.tracks: list[Track] = found.values["track"]
        self.plan = TrackPlan()
        self.plan.row_of = np.full((len(self.tracks), 2), -1, dtype=np.int64)
        self._next = (number + 1) * _TRACKS_PER_RANK

    def uuid(self) -> int:
        """A number that no other row has."""
        self._next += 1
        if self._next >= (self.number + 2) * _TRACKS_PER_RANK:
            raise TorchTraceError(
                f"rank {self.title.rank}: has more than {_TRACKS_PER_RANK:,} tracks, which no "
                "timeline can show; slim the trace to what is of interest."
            )
        return self._next

    @property
    def largest_uuid(self) -> int:
        """No number of this rank is larger."""
        return (self.number + 2) * _TRACKS_PER_RANK - 1

    def lay_out(self) -> TrackPlan:
        work = self._time_by_track(set(GPU_WORK))
        marks = self._time_by_track({GPU_ANNOTATIONS})
        devices: dict[Any, list[int]] = defaultdict(list)
        cpu: dict[Any, list[int]] = defaultdict(list)
        used = set(distinct(self.found.events["track"]).tolist())
        for code in sorted(used):
            pid = self.tracks[code][0]
            (devices if code in work or code in marks else cpu)[pid].append(code)
        busiest = sorted(devices, key=lambda one: -sum(work.get(c, 0) for c in devices[one]))
        for device in busiest:
            self._gpu(device, devices[device], marks, named=len(busiest) > 1)
        self._cpu(cpu)
        return self.plan

    def _time_by_track(self, categories: set[str]) -> dict[int, int]:
        events = self.found.events
        known = np.array([c in categories for c in self.found.values["category"]], dtype=bool)
        if not len(events["start"]):
            return {}
        mine = known[events["category"]] & (events["instant"] == 0)
        track = events["track"][mine]
        time = np.bincount(track, weights=events["dur"][mine], minlength=len(self.tracks))
        return {code: int(time[code]) for code in distinct(track).tolist()}

    def _gpu(self, device: Any, codes: list[int], marks: Mapping[int, int], *, named: bool) -> None:
        rank, plan = self.title.short, self.plan
        name = f"{rank} GPU{f' {device}' if named else ''}{self.title.where}"
        root = Shown(self.uuid(), name)
        plan.descriptors.append(descriptors.root(root.uuid, name))
        plan.roots[device] = root.uuid
        ordered = sorted(codes, key=lambda code: self._stream_order(code))
        # The row itself shows the annotations of the stream that has most: seen when it is closed.
        own = max((c for c in codes if c in marks), key=lambda c: marks[c], default=None)
        for nth, code in enumerate(ordered):
            title = f"{rank} {self._stream_name(code)}"
            if code == own:
                plan.row_of[code, 1] = self._add(root)
            elif code in marks:
                row = Shown(self.uuid(), f"{title} annotations", root.uuid, 10 * nth + 1)
                plan.row_of[code, 1] = self._add(row)
                plan.descriptors.append(
                    descriptors.child(row.uuid, row.name, row.parent, row.order)
                )
            row = Shown(self.uuid(), title, root.uuid, 10 * nth + 2)
            plan.row_of[code, 0] = self._add(row)
            plan.descriptors.append(descriptors.child(row.uuid, row.name, row.parent, row.order))

    def _add(self, row: Shown) -> int:
        self.plan.rows.append(row)
        return len(self.plan.rows) - 1

    def _stream_order(self, code: int) -> tuple[int, int]:
        label, stream = self.labels.get(self.tracks[code]), self.tracks[code][1]
        return label.order if label else _LAST, stream if isinstance(stream, int) else _LAST

    def _stream_name(self, code: int) -> str:
        label = self.labels.get(self.tracks[code])
        return f"stream {self.tracks[code][1]}" + (f" {label.text}" if label else "")

    def _cpu(self, processes: Mapping[Any, list[int]]) -> None:
        """Threads; what the profiler says about itself becomes threads of the rank's process."""
        events = np.bincount(self.found.events["track"], minlength=len(self.tracks))
        main = self.title.main
        real = {pid: c for pid, c in processes.items() if isinstance(pid, int) and pid >= 0}
        rest = [code for pid, codes in processes.items() if pid not in real for code in codes]
        order = sorted(
            real, key=lambda pid: (main is None or pid != main[0], -int(events[real[pid]].sum()))
        )
        threads = [
            sorted(real[pid], key=lambda c: (self.tracks[c] != main, -int(events[c])))
            for pid in order
        ]
        if rest:
            threads = [[*threads[0], *rest], *threads[1:]] if threads else [rest]
        tid = (self.number + 1) * _THREADS_PER_RANK
        for nth, codes in enumerate(threads):
            pid = tid
            name = f"{self.title.short} CPU" + (f" process {order[nth]}" if nth else "")
            self.plan.descriptors.append(descriptors.process(self.uuid(), pid, name))
            for code in codes:
                row = Shown(self.uuid(), f"{self.title.short} {self._thread_name(code)}")
                self.plan.row_of[code] = self._add(row)
                self.plan.descriptors.append(descriptors.thread(row.uuid, pid, tid, row.name))
                tid += 1

    def _thread_name(self, code: int) -> str:
        pid, tid = track = self.tracks[code]
        if pid == -1:
            return "profiler overhead"
        if not isinstance(pid, int):
            # Kineto's marks of its own: spans, when an iteration began, when the recording ended.
            named = ": ".join(part for one in track if (part := str(one).strip()))
            return f"profiler {named or 'marks'}"
        name = self.found.thread_names.get(track) or f"thread {tid}"
        return name.replace("thread", "main thread", 1) if track == self.title.main else name
