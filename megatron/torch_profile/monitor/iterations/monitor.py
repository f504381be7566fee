# SPDX-License-Identifier: Apache-2.0
"""The monitor of one rank: a thread reads what training has marked and sends it to rank 0.

    every rank   training marks -> thread reads, keeps the last iterations -> one key in the store
    rank 0       the same thread reads the keys of all ranks, judges, says which rank is slow
    W&B's rank   its thread reads the lines that rank 0 has made

There is no collective, and each key is written over: the store does not grow.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from megatron.torch_profile.export.own_process import resident_bytes
from megatron.torch_profile.guard import Guard
from megatron.torch_profile.log import Slug, warn
from megatron.torch_profile.monitor.channel import Channel
from megatron.torch_profile.monitor.iterations import measured
from megatron.torch_profile.monitor.iterations.growth import Growing, Growth
from megatron.torch_profile.monitor.iterations.interval_line import Intervals
from megatron.torch_profile.monitor.iterations.judgement import Judge, Judged, SlowRank
from megatron.torch_profile.monitor.iterations.measured import Measured
from megatron.torch_profile.monitor.iterations.phase_clock import PhaseClock
from megatron.torch_profile.monitor.iterations.sampling import Sampling
from megatron.torch_profile.plan.topology import Topology
from megatron.torch_trace import wording

LOOK_SECONDS = 1.0
RANKS_A_SECOND = 256
"""Above so many ranks each one sends less often: the store serves them all."""
_KEPT = 1000
"""Iterations in memory."""
_SENT = 64
"""Iterations in a message."""
_PATIENCE = 64
"""Iterations that rank 0 waits for a rank that does not send."""
_MOST_LINES = 50
"""About slow ranks, in a run."""
_TOLD_IN_A_HANG = 20
_LAST_LOOKS, _LAST_SECONDS = 10, 1.0


class Monitor:
    """Of one rank.

    Args:
        clock: what training marks.
        topology: of the job.
        channel: between the ranks.
        interval: iterations between two lines of numbers.
        sampling: which iterations are measured in their parts.
    """

    def __init__(
        self,
        clock: PhaseClock,
        topology: Topology,
        channel: Channel,
        interval: int,
        sampling: Sampling | None = None,
    ) -> None:
        self._clock = clock
        self._rank = topology.rank
        self._channel = channel
        self._kept: deque[bytes] = deque(maxlen=_KEPT)
        self._unsent: deque[bytes] = deque(maxlen=_SENT)
        # Where not all iterations are measured in parts, one has been slow before two of them are.
        in_a_row = 2 if sampling is not None and sampling.every > 1 else 3
        self._collector = (
            Collector(topology, channel, interval, in_a_row) if self._rank == 0 else None
        )
        self._heard_lines = 0
        self.lines: deque[dict[str, float]] = deque(maxlen=_KEPT)
        """Numbers of intervals that nobody has taken yet."""
        self.wants_lines = False
        """Whether somebody on this rank, which is not rank 0, takes them."""
        self._pid = os.getpid()
        self._period = max(LOOK_SECONDS, topology.layout.world_size / RANKS_A_SECOND)
        self._stop = threading.Event()
        self._guard = Guard(Slug.MONITOR_FAILED, f"rank {self._rank} is not monitored any more")
        self._thread = threading.Thread(target=self._run, name="torch-profile-monitor", daemon=True)

    @property
    def judged(self) -> list[Callable[[Judged, Judge], None]]:
        """On rank 0: who is told of every iteration, in this thread."""
        return self._collector.listeners if self._collector is not None else []

    def start(self) -> None:
        """From now on."""
        self._thread.start()

    def stop(self) -> None:
        """Training has ended: what is measured by now is sent."""
        if os.getpid() != self._pid:  # a fork of training that ends: the store is its parent's
            return
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(self._period + 5.0)
        with suppress(Exception):  # the store may be gone, with the rank that held it
            if not self._guard.failed and not self._thread.is_alive():
                self.look()
                self._wait_for_others()

    def _wait_for_others(self) -> None:
        """Rank 0 is ready a moment before the others have sent their last iterations."""
        for _ in range(_LAST_LOOKS):
            if self._collector is None or self._collector.complete:
                return
            time.sleep(_LAST_SECONDS / _LAST_LOOKS)
            self.look()

    def last_iterations(self) -> tuple[dict[str, Any], ...]:
        """For a hang record."""
        rows = [*self._kept][-_TOLD_IN_A_HANG:]
        return tuple(Measured.unpacked(row).as_json() for row in rows)

    def _run(self) -> None:
        while not self._stop.wait(self._period) and not self._guard.failed:
            self._guard(self.look)

    def look(self) -> None:
        """Read, send, and on rank 0 collect."""
        measured_now = self._clock.read()
        if measured_now:
            resident = resident_bytes() / 1e6
            rows = [replace(row, resident=resident).packed() for row in measured_now]
            self._kept.extend(rows)
            self._unsent.extend(rows)
            self._channel.set(f"rows/{self._rank}", measured.as_text(self._unsent))
        if self._collector is not None:
            self._collector.look()
            self.lines.extend(self._collector.take_lines())
        elif self.wants_lines:
            while self._channel.check([f"line/{self._heard_lines}"]):
                text = self._channel.get(f"line/{self._heard_lines}")
                self.lines.append(json.loads(text))
                self._heard_lines += 1


class Collector:
    """On rank 0: all ranks' rows, in order.

    Args:
        topology: of the job.
        channel: between the ranks.
        interval: iterations between two lines of numbers.
        in_a_row: iterations, measured in parts, in which a rank must be slow.
    """

    def __init__(
        self, topology: Topology, channel: Channel, interval: int, in_a_row: int = 3
    ) -> None:
        self._topology = topology
        self._channel = channel
        self._size = topology.layout.world_size
        self._judge = Judge(peers_of(topology), in_a_row)
        self._growth = Growth()
        self._intervals = Intervals(interval, [member.host for member in topology.members])
        self._waiting: dict[int, dict[int, Measured]] = {}
        self._there: set[int] = set()
        self._last = dict.fromkeys(range(self._size), 0)
        self._done = 0
        self._said = 0
        self._lines: list[dict[str, float]] = []
        self._published = 0
        self.listeners: list[Callable[[Judged, Judge], None]] = []

    def look(self) -> None:
        """Take what ranks have sent, and judge iterations that are complete."""
        for rank in range(self._size):
            key = f"rows/{rank}"
            if rank not in self._there:
                if not self._channel.check([key]):
                    continue
                self._there.add(rank)
            for row in measured.parse(self._channel.get(key), self._last[rank]):
                self._last[rank] = row.iteration
                self._waiting.setdefault(row.iteration, {})[rank] = row
        for iteration in sorted(self._waiting):
            late = max(self._last.values()) - iteration > _PATIENCE
            if len(self._waiting[iteration]) < self._size and not late:
                break
            rows = self._waiting.pop(iteration)
            if iteration > self._done:  # a late rank's rows of an iteration that is judged
                self._done = iteration
                self._judged(self._judge.judge(iteration, dict(sorted(rows.items()))))

    @property
    def complete(self) -> bool:
        """Whether all ranks have sent the same last iteration."""
        return not self._waiting and len({*self._last.values()}) == 1

    def take_lines(self) -> list[dict[str, float]]:
        """Numbers of intervals that have ended since the last call; other ranks can read them."""
        lines, self._lines = self._lines, []
        for line in lines:
            self._channel.set(f"line/{self._published}", json.dumps(line))
            self._published += 1
        return lines

    def _judged(self, judged: Judged) -> None:
        for slow in self._judge.slow_ranks(judged):
            if self._said < _MOST_LINES:
                self._said += 1
                self._say(slow)
                self._lines.append(slow.as_line())
        for growing in self._growth.add(judged):
            self._say_growing(growing)
            self._lines.append(growing.as_line())
        for listener in self.listeners:
            listener(judged, self._judge)
        line = self._intervals.add(judged)
        if line is not None:
            self._lines.append(line)

    def _say(self, slow: SlowRank) -> None:
        warn(
            Slug.SLOW_RANK,
            "rank %d (%s) is slow since iteration %d: %s longer in %s than its peers, in an "
            "iteration of %s (seen in iteration %d)",
            slow.rank,
            self._where(slow.rank),
            slow.since,
            wording.duration(slow.excess * 1e6),
            wording.part_of_iteration(slow.part),
            wording.duration(slow.total * 1e6),
            slow.iteration,
        )

    def _say_growing(self, growing: Growing) -> None:
        warn(
            Slug.MEMORY_GROWS,
            "the memory of rank %d (%s) on its host grows by %s an iteration since iteration %d: "
            "from %s to %s (seen in iteration %d)",
            growing.rank,
            self._where(growing.rank),
            wording.size(growing.each * 1e6),
            growing.since,
            wording.size(growing.before * 1e6),
            wording.size(growing.now * 1e6),
            growing.iteration,
        )

    def _where(self, rank: int) -> str:
        member, sizes = self._topology.members[rank], self._topology.layout.sizes
        # A dimension of one rank tells nothing: `tp1 pp0 dp1`, without cp0 and ep0.
        coordinates = " ".join(
            f"{name}{at}" for name, at in member.coordinates.items() if sizes.get(name, at + 2) > 1
        )
        return ", ".join(filter(None, (member.host, coordinates)))


def peers_of(topology: Topology) -> list[list[int]]:
    """By rank, the ranks of its pipeline stage, which have the same work."""
    stages: dict[int, list[int]] = {}
    for member in topology.members:
        stages.setdefault(member.coordinates.get("pp", 0), []).append(member.rank)
    return [stages[member.coordinates.get("pp", 0)] for member in topology.members]
