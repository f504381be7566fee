# SPDX-License-Identifier: Apache-2.0
"""Every slice of the CPU and what encloses it, as torch's own profiler nests its events.

    forward            [------------------------)
      aten::linear        [--------)  [-----)        parent: forward
        aten::addmm         [----)      [--)         parent: the aten::linear around it

Columns, and no objects: a seventh of the JSON's size.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.columns import call_tables
from megatron.torch_trace.columns.arguments import SlimEventWithArgs
from megatron.torch_trace.columns.builder import ColumnBuilder
from megatron.torch_trace.columns.call_tables import CPU, GPU, MEMORY, PYTHON, WORK
from megatron.torch_trace.columns.intervals import Ints
from megatron.torch_trace.columns.joined_columns import NONE, JoinedColumns
from megatron.torch_trace.columns.true_times import Columns, as_intervals, mend, take
from megatron.torch_trace.reader import Damage, Trace

Bools = npt.NDArray[np.bool_]

_LEFT_OUT = frozenset(
    {
        "profiler::_record_function_enter",
        "profiler::_record_function_enter_new",
        "profiler::_record_function_exit",
        "aten::is_leaf",
        "aten::output_nr",
        "aten::_version",
    }
)
"""torch counts none of these."""


@dataclass(slots=True)
class CallTree:
    """The slices of one trace.

    Args:
        cpu: columns of `call_tables.CPU`, sorted by start, of equal starts the longer first.
        parent: row of the slice around each row of `cpu`, NONE if nothing is.
        repeats: rows that are the only thing in a slice of the same name, and count as it.
        gpu, memory: columns of the tables of these names.
    """

    names: list[str]
    cpu: Columns
    parent: Ints
    repeats: Bools
    gpu: Columns
    memory: Columns
    damage: Damage

    @property
    def duration(self) -> Ints:
        """Of each row of `cpu`, in ns."""
        return self.cpu["end"] - self.cpu["start"]

    @property
    def has_gpu(self) -> bool:
        """Whether there is GPU work."""
        return bool((self.gpu["kind"] == WORK).any())

    @property
    def has_python(self) -> bool:
        """Whether there are Python functions."""
        return bool((self.cpu["kind"] == PYTHON).any())

    def inside(self) -> Ints:
        """The slice around each row, where repeats count as the slice that they repeat."""
        found = self.parent.copy()
        while (again := (found != NONE) & self.repeats[found]).any():
            found[again] = self.parent[found[again]]
        return found

    def own(self, total: Ints, inside: Ints) -> Ints:
        """What is left of each row's total without that of the slices right inside."""
        left = total.copy()
        rows = np.flatnonzero(~self.repeats & (inside != NONE))
        np.subtract.at(left, inside[rows], total[rows])
        return left

    def gpu_time(self) -> Ints:
        """Durations of the GPU work that each row itself has launched, by `External id`."""
        found = np.zeros(len(self.parent), dtype=np.int64)
        known = np.flatnonzero(self.cpu["external_id"] > 0)
        ids, first = np.unique(self.cpu["external_id"][known], return_index=True)
        work = np.flatnonzero((self.gpu["kind"] == WORK) & (self.gpu["external_id"] > 0))
        if not len(ids) or not len(work):
            return found
        wanted = self.gpu["external_id"][work]
        at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
        linked = ids[at] == wanted
        rows = known[first[at[linked]]]
        np.add.at(found, rows, (self.gpu["end"] - self.gpu["start"])[work[linked]])
        head = np.arange(len(found))
        while (again := self.repeats[head]).any():
            head[again] = self.parent[head[again]]
        lifted = np.zeros_like(found)
        np.add.at(lifted, head, found)
        return lifted

    def with_inner(self, own: Ints, inside: Ints) -> Ints:
        """Each row's own and that of all slices inside of it."""
        total = own.copy()
        depth = _depths(inside)
        for level in range(int(depth.max(initial=0)), 0, -1):
            rows = np.flatnonzero((depth == level) & (total != 0) & ~self.repeats)
            np.add.at(total, inside[rows], total[rows])
        return total


def call_tree(path: Path | str, *, strict: bool = False, workers: int = 1) -> CallTree:
    """Read one trace.

    Args:
        path: of one rank.
        strict: raise StrictError at the first fault.
        workers: processes to decode with.
    """
    trace = Trace(path, strict=strict)
    joined = JoinedColumns(call_tables.COLUMNS, call_tables.CODES)
    look = ColumnBuilder(call_tables.call_tables())
    for block in trace.map(look, SlimEventWithArgs, workers=workers, small_results=True):
        joined.add(block)
    tables, names = joined.finish(), list(joined.codes["name"])
    for table, columns in tables.items():
        tables[table] = {key: np.array(column) for key, column in columns.items()}
    slices = {CPU: tables[CPU], GPU: tables[GPU]}
    mend(slices, lambda table, rows: (rows["kind"] == WORK) & (table == GPU))
    cpu = slices[CPU]
    left_out = np.array([name in _LEFT_OUT for name in names], dtype=bool)
    if len(cpu["name"]) and (drop := left_out[cpu["name"]]).any():
        take(cpu, ~drop)
    for columns in slices.values():
        as_intervals(columns)
    parent = _parents(cpu)
    return CallTree(
        names, cpu, parent, _repeats(cpu, parent), slices[GPU], tables[MEMORY], trace.damage
    )


def _parents(cpu: Columns) -> Ints:
    found = np.full(len(cpu["start"]), NONE, dtype=np.int64)
    for rows in _by_track(cpu["track"]):
        around: list[tuple[int, int]] = []
        mine = np.full(len(rows), NONE, dtype=np.int64)
        slices = zip(
            rows.tolist(), cpu["start"][rows].tolist(), cpu["end"][rows].tolist(), strict=True
        )
        for nth, (row, start, end) in enumerate(slices):
            while around and (start >= around[-1][1] or end > around[-1][1]):
                around.pop()
            if around:
                mine[nth] = around[-1][0]
            around.append((row, end))
        found[rows] = mine
    return found


def _by_track(track: Ints) -> Iterable[Ints]:
    order = np.argsort(track, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(track[order])) + 1) if len(order) else ()


def _repeats(cpu: Columns, parent: Ints) -> Bools:
    inner = np.bincount(parent[parent != NONE], minlength=len(parent))
    alone: Bools = (cpu["name"] == cpu["name"][parent]) & (inner[parent] == 1)
    alone &= parent != NONE
    return alone


def _depths(inside: Ints) -> Ints:
    depth = np.zeros(len(inside), dtype=np.int64)
    around = inside.copy()
    while (rows := np.flatnonzero(around != NONE)).size:
        depth[rows] += 1
        around[rows] = inside[around[rows]]
    return depth
