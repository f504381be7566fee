# SPDX-License-Identifier: Apache-2.0
"""The packets of one rank in the order in which they must stand: words, rows, what is on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.format.integer_arrays import Ints
from megatron.torch_trace.perfetto import descriptors
from megatron.torch_trace.perfetto.emission import Emitter
from megatron.torch_trace.perfetto.events import RankEvents
from megatron.torch_trace.perfetto.flows import Arrows, connect
from megatron.torch_trace.perfetto.order import lanes_of
from megatron.torch_trace.perfetto.streams import queue_depth
from megatron.torch_trace.perfetto.time_order import BLOCK_PACKETS, BlockWriter, Layout
from megatron.torch_trace.perfetto.tracks import GPU_ANNOTATIONS, Planner, Shown, TrackPlan
from megatron.torch_trace.tracks.lanes import order_of


class PartWriter:
    """Writes the part of one rank.

    Args:
        sequence: the rank's number of Perfetto's packet sequences.
        found: its events; sorted here.
        planner: of its rows.
        timeline: what the analysis makes of the rank; None if there is nothing to analyse.

    Attributes:
        packets, arrows, crossing: how many were written; slices that moved to lanes of their own.
        lost_arrows: those of which an end is on no slice.
    """

    def __init__(
        self, sequence: int, found: RankEvents, planner: Planner, timeline: Timeline | None
    ) -> None:
        self._sequence, self._found = sequence, found
        self._planner, self._timeline = planner, timeline
        self.packets = self.arrows = self.crossing = self.lost_arrows = 0

    def write(self, write: Callable[[bytes], None]) -> Layout:
        """Write everything.

        Args:
            write: takes bytes.

        Returns:
            What lies where in that which was written.
        """
        plan = self._planner.lay_out()
        arrows, rows = self._sort(plan)
        emitter = Emitter(self._sequence, self._found, arrows, self._planner.largest_uuid)
        described = [*plan.descriptors, *self._add_slices(emitter, plan, rows)]
        for ts, values, descriptor, uuid in self._counters(plan):
            described.append(descriptor)
            emitter.counter(ts, values, uuid)
        file = BlockWriter(write)
        file.head(descriptors.beginning(self._sequence))
        for words in self._words(emitter):
            file.head(words)
        file.head(b"".join(descriptors.packet(self._sequence, one) for one in described))
        for start, packets in emitter.in_order(BLOCK_PACKETS):
            file.block(start, packets)
        self.packets, self.arrows = emitter.packets, arrows.count
        self.lost_arrows = arrows.lost
        return file.layout

    def _sort(self, plan: TrackPlan) -> tuple[Arrows, Ints]:
        """Sort the events by row, start, longest first, and connect arrows to them."""
        found, events = self._found, self._found.events
        is_mark = np.array([c == GPU_ANNOTATIONS for c in found.values["category"]], dtype=bool)
        mark = is_mark[events["category"]]
        rows = plan.row_of[events["track"], mark.astype(np.int64)]
        order = order_of(rows, events["start"], events["dur"])
        for column in list(events):
            events[column] = events[column][order]
        rows = rows[order]
        may_hold = ~mark[order] & (events["instant"] == 0)
        own = plan.row_of[found.arrows["track"], 0]
        ends = events["start"] + events["dur"]
        return connect(found, own, rows, events["start"], ends, may_hold), rows

    def _words(self, emitter: Emitter) -> Iterator[bytes]:
        values = self._found.values
        for kind, words in (
            (descriptors.CATEGORIES, values["category"]),
            (descriptors.NAMES, values["name"]),
            (descriptors.ARGUMENT_NAMES, emitter.argument_names),
            (descriptors.ARGUMENT_TEXTS, values["text"]),
        ):
            yield from descriptors.interned(self._sequence, kind, words)

    def _add_slices(self, emitter: Emitter, plan: TrackPlan, rows: Ints) -> Iterator[bytes]:
        """Give all slices to the emitter; yields what describes the rows that the plan lacks."""
        ts, dur = self._found.events["start"], self._found.events["dur"]
        bounds = np.searchsorted(rows, np.arange(len(plan.rows) + 1)).tolist()
        for shown, start, stop in zip(plan.rows, bounds, bounds[1:], strict=False):
            lanes = lanes_of(ts[start:stop], ts[start:stop] + dur[start:stop])
            for number, lane in enumerate(lanes):
                uuid = shown.uuid
                if number:
                    uuid, descriptor = self._new_lane(shown, number)
                    yield descriptor
                    self.crossing += len(lane.slices)
                emitter.lane(lane.slices + start, lane.order, uuid)

    def _new_lane(self, shown: Shown, number: int) -> tuple[int, bytes]:
        uuid, name = self._planner.uuid(), f"{shown.name} crossing {number}"
        return uuid, descriptors.child(uuid, name, shown.parent or shown.uuid, shown.order)

    def _counters(self, plan: TrackPlan) -> Iterator[tuple[Ints, Ints, bytes, int]]:
        """Times, values, and the row with its uuid."""
        rank, memory, timeline = self._planner.title.short, self._found.memory, self._timeline
        for device, root in plan.roots.items():
            mine = np.flatnonzero(memory["device"] == device)
            mine = mine[np.argsort(memory["start"][mine], kind="stable")]
            for what in ("allocated", "reserved") if len(mine) else ():
                row = self._counter(root, f"{rank} memory {what}", descriptors.BYTES)
                yield memory["start"][mine], memory[what][mine], *row
            if timeline is not None and timeline.devices.analysed == device:
                ts, depth = queue_depth(timeline)
                if len(ts):
                    name = f"{rank} launched work waiting"
                    yield ts, depth, *self._counter(root, name, descriptors.COUNT)

    def _counter(self, root: int, name: str, unit: int) -> tuple[bytes, int]:
        uuid = self._planner.uuid()
        return descriptors.counter(uuid, name, root, uuid, unit), uuid
