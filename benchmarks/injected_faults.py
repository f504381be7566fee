# SPDX-License-Identifier: Apache-2.0
"""Does `analyze` name a fault that was put into recorded traces, and what mending it would gain?

python benchmarks/injected_faults.py FOLDER... [--count 20]

The CPU of one rank is made to wait at a span, once in each step or at each span of its kind. The
graph of kernels says when everything else happens then: what was launched later starts later, and
all ranks of a collective end together. The events of all ranks are moved to these times, written as
traces, and analysed as any others. Which rank and span it was, and by how much the iteration grew,
is known; so this tests that a fault is found again in traces, not that the graph is right.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from megatron import torch_trace
from megatron.torch_trace.analysis.replay.effects.adjustment import Adjustment
from megatron.torch_trace.analysis.replay.kernels.rank_graph import RankGraph
from megatron.torch_trace.analysis.replay.kernels.thread_points import WAIT
from megatron.torch_trace.analysis.replay.replay import Replay
from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.reader.bytestream import ByteStream

KINDS = ("forward micro-batch", "backward micro-batch", "optimizer")
ALONE = ("training loop", "backward pass")
"""What pieces of a recording without spans of phases are called."""
SHARES = (0.06, 0.1, 0.16)
"""Of the iteration, how long the CPU waits in all."""
LEAST = 0.03
"""Of the iteration: a fault that lengthens it by less is behind another rank's luck."""
GPU = ("kernel", "gpu_memcpy", "gpu_memset")
MOVED = ("cpu_op", "cuda_runtime", "cuda_driver", "user_annotation", "overhead", *GPU)


@dataclass(frozen=True, slots=True)
class Fault:
    """One rank that waits.

    Args:
        rank: global rank.
        kind: what its spans begin with; "" in a recording without spans.
        each: at each span of the kind, else at one of them in every step.
        ns: of CPU time, each time.
        places: nodes of the segments that become longer, and when in them, ns.
    """

    rank: int
    kind: str
    each: bool
    ns: int
    places: tuple[tuple[int, int], ...]

    @property
    def text(self) -> str:
        where = self.kind or "between launches"
        return f"rank {self.rank} {self.ns / 1e6:5.1f} ms {'each' if self.each else 'one'} {where}"


class Window:
    """A healthy recording, and what it would be with a fault.

    Args:
        folder: of its traces.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.replay = Replay.of(folder)
        self.healthy = Adjustment.none(self.replay.found)
        self.before = self.replay.evaluated(self.healthy)
        self.documents = {
            one.rank: msgspec.json.decode(b"".join(ByteStream(one.timeline.activity.path)))
            for one in self.replay.found.ranks
        }

    def faults(self, chance: random.Random) -> Iterator[Fault]:
        """Faults at random places, without end."""
        ranks = [one for one in self.replay.found.ranks if self.replay.found.peers.peers(
            self.replay.found.ranks.index(one))]  # fmt: skip
        while ranks:
            rank, share = chance.choice(ranks), chance.choice(SHARES)
            kind, each = chance.choice(KINDS), chance.random() < 0.5
            spans = _spans(rank, kind)
            if not spans and any(_spans(rank, one) for one in KINDS):
                continue
            chosen = _chosen(rank, spans, each, chance)
            places = [_place(rank, time) for time in chosen]
            there = tuple(one for one in places if one is not None)
            steps = len(rank.timeline.window.steps)
            if len(there) >= steps:
                ns = round(share * self.replay.recorded_ns * steps / len(there))
                yield Fault(rank.rank, kind if spans else "", each and bool(spans), ns, there)

    def grown_ns(self, fault: Fault) -> int:
        """By how much the fault lengthens the iteration."""
        after = self.replay.evaluated(self._with(fault))
        return after.iteration_ns - self.before.iteration_ns

    def write(self, fault: Fault, folder: Path) -> None:
        """All ranks' traces with the fault."""
        times = self.replay.evaluated(self._with(fault)).times
        for one in self.replay.found.ranks:
            document = self.documents[one.rank]
            moved = _Moved(one, times, fault).events(document["traceEvents"])
            path = folder / f"rank-{one.rank}.json"
            path.write_bytes(msgspec.json.encode({**document, "traceEvents": moved}))

    def _with(self, fault: Fault) -> Adjustment:
        changed = Adjustment.none(self.replay.found)
        for node, _ in fault.places:
            changed.duration[node] += fault.ns
        return changed


class _Moved:
    """A rank's events at other times.

    Args:
        rank: its part of the graph.
        times: of all nodes, with the fault.
        fault: what happened; it may be on another rank.
    """

    def __init__(self, rank: RankGraph, times: np.ndarray, fault: Fault) -> None:
        activity, points = rank.timeline.activity, rank.points
        here = slice(rank.first_point, rank.first_point + len(points))
        self.new, self.old, self.fault = times[here] - rank.shift, points.time, fault
        self.inside = {
            node - rank.first_point: time for node, time in fault.places if rank.rank == fault.rank
        }
        self.tracks = {
            _thread(*activity.tracks[code]): np.flatnonzero(points.track == code)
            for code in np.unique(points.track).tolist()
        }
        self.main = np.flatnonzero(points.track == rank.timeline.window.track)
        gpu = activity.gpu
        start, end = times[rank.starts] - rank.shift, gpu.end - gpu.start
        ended = np.where(rank.ends == NONE, start + end[rank.rows], times[rank.ends] - rank.shift)
        keys = zip(gpu.correlation[rank.rows].tolist(), gpu.start[rank.rows].tolist(), strict=True)
        self.work = dict(zip(keys, zip(start.tolist(), ended.tolist(), strict=True), strict=True))

    def events(self, events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Slices at their new times, and metadata; arrows and the GPU's annotations are left."""
        found = []
        for event in events:
            if event.get("ph") == "M":
                found.append(event)
            elif event.get("ph") == "X" and event.get("cat") in MOVED:
                begin, end = _ns(event["ts"]), _ns(event["ts"] + event.get("dur", 0))
                if event["cat"] in GPU:
                    key = event["args"].get("correlation"), begin
                    begin, end = self.work.get(key) or (self._at(begin, self.main),) * 2
                else:
                    track = self.tracks.get(_thread(event["pid"], event["tid"]), self.main)
                    begin, end = self._at(begin, track), self._at(end, track)
                found.append({**event, "ts": begin / 1e3, "dur": (end - begin) / 1e3})
        return found

    def _at(self, time: int, track: np.ndarray) -> int:
        """When a thread does then what it did at a time."""
        # An end is a start and a length, of which each may be rounded.
        at = int(np.searchsorted(self.old[track], time + 1, side="right")) - 1
        if at < 0:
            return time
        point = int(track[at])
        moved = int(self.new[point]) + time - int(self.old[point])
        if point in self.inside and time >= self.inside[point]:
            moved += self.fault.ns
        return min(moved, int(self.new[track[at + 1]])) if at + 1 < len(track) else moved


def _ns(us: float) -> int:
    return round(us * 1000)


def _thread(pid: object, tid: object) -> tuple[str, str]:
    return str(pid), str(tid)


def _spans(rank: RankGraph, kind: str) -> list[int]:
    """When spans of a kind begin on the training loop's thread."""
    activity = rank.timeline.activity
    ops, rows = activity.ops, rank.timeline.phase_spans
    names = [activity.names[code] for code in ops.name[rows].tolist()]
    return [int(ops.start[row]) for row, name in zip(rows, names, strict=True) if
            (name == kind if kind == "optimizer" else name.startswith(kind))]  # fmt: skip


def _chosen(rank: RankGraph, spans: list[int], each: bool, chance: random.Random) -> list[int]:
    steps = rank.timeline.window.steps
    if not spans:
        part = chance.uniform(0.1, 0.9)
        return [round(step.start + part * (step.cpu_end - step.start)) for step in steps]
    found = []
    for step in steps:
        mine = [time for time in spans if step.start <= time < step.cpu_end]
        found += mine if each or not mine else [chance.choice(mine)]
    return found


def _place(rank: RankGraph, time: int) -> tuple[int, int] | None:
    """The segment in which the CPU works shortly after a time."""
    points = rank.points
    main = np.flatnonzero(points.track == rank.timeline.window.track)
    at = int(np.searchsorted(points.time[main], time, side="right")) - 1
    for position in main[max(at, 0) : at + 40].tolist():
        begin = max(int(points.time[position]), time) + 100
        follows = position + 1 < len(points) and points.time[position + 1] > begin
        if points.role[position] != WAIT and follows:
            return rank.first_point + position, begin
    return None


def check(window: Window, fault: Fault, grown: int) -> tuple[str, bool]:
    """What `analyze` says of it, and whether that is right."""
    with tempfile.TemporaryDirectory() as folder:
        window.write(fault, Path(folder))
        analysis = torch_trace.analyze(folder, gains=True, use_partials=False, jobs=1)
    for place, one in enumerate(analysis.findings, 1):
        causes = one.evidence.get("causes") or [{"rank": None, "name": ""}]
        if one.code == "straggler" and causes[0]["rank"] == fault.rank:
            gain, name = one.gain_ns or 0, causes[0]["name"]
            named = name.startswith((fault.kind,) if fault.kind else ALONE)
            close = abs(gain - grown) <= 0.1 * grown
            said = (
                f"finding {place}, gain {gain / 1e6:5.1f} ms ({gain / grown - 1:+.1%}), error "
                f"{(one.gain_error_ns or 0) / 1e6:.2f} ms, in `{name}`"
            )
            return said, close and named
    return "not found", False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, help="healthy windows, of several ranks")
    parser.add_argument("--count", type=int, default=20, help="faults in all")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    right = tried = hidden = 0
    for number, folder in enumerate(arguments.folders):
        window, chance = Window(folder), random.Random(arguments.seed + number)
        wanted = arguments.count * (number + 1) // len(arguments.folders) - tried
        for fault in window.faults(chance):
            if not wanted:
                break
            grown = window.grown_ns(fault)
            if grown < LEAST * window.replay.recorded_ns:
                hidden += 1
                continue
            said, is_right = check(window, fault, grown)
            tried, wanted, right = tried + 1, wanted - 1, right + is_right
            print(f"{'right' if is_right else 'WRONG'}  {folder.name:24} {fault.text:44} "
                  f"{grown / 1e6:6.1f} ms: {said}", flush=True)  # fmt: skip
    print(f"{right} of {tried} right; {hidden} more were behind another rank's luck.")
    sys.exit(right < tried)


if __name__ == "__main__":
    main()
