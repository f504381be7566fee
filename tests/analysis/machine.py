# SPDX-License-Identifier: Apache-2.0
"""Ranks that run small programs, with known costs, and write what they did as traces.

The same program with other numbers is what a change would really give, so that a replay can be held
against it to the nanosecond.

    program = [cpu(30_000), run("gemm", 10_000), sync()]
    Machine({0: program}).record(folder)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from trace_builder import NCCL, SENDRECV, TraceBuilder, collective_args
from trace_builder.events import BACKWARD, LOOP

LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"

LATENCY, GAP, RETURN, COST, CALL = 5_000, 1_500, 4_000, 3_000, 2
"""ns: from a launch to its kernel; between kernels; from the end of work to the return of a call
that waits for it; such a call if there is nothing to wait for; a call that launches."""

MAIN, SIDE = 7, 23


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that a thread does; see the functions below."""

    what: str
    time: int = 0
    name: str = ""
    stream: int = MAIN
    peer: int = -1
    eager: bool = False
    thread: int = LOOP


def cpu(time: int) -> Act:
    """The CPU works."""
    return Act("cpu", time)


def load(time: int) -> Act:
    """The CPU waits for the data loader."""
    return Act("load", time)


def collect(time: int) -> Act:
    """Python's garbage collector runs."""
    return Act("collect", time)


def run(name: str, time: int, stream: int = MAIN, thread: int = LOOP) -> Act:
    """A kernel is launched, which takes so long."""
    return Act("run", time, name, stream, thread=thread)


def side(name: str, time: int) -> Act:
    """A kernel on another stream, which first waits for the main one."""
    return Act("side", time, name, SIDE)


def join() -> Act:
    """The main stream waits for the other one."""
    return Act("join", stream=SIDE)


def copy(time: int, *, pinned: bool = False) -> Act:
    """Memory of the host is copied to the GPU; if it is not pinned, the CPU waits for that."""
    name = f"Memcpy HtoD ({'Pinned' if pinned else 'Pageable'} -> Device)"
    return Act("run" if pinned else "copy", time, name)


def sync() -> Act:
    """The CPU waits for the main stream."""
    return Act("sync")


def device_sync() -> Act:
    """The CPU waits for all streams."""
    return Act("device")


def reduce(time: int, dimension: str = "dp") -> Act:
    """An all-reduce over all ranks, whose transfer takes so long."""
    return Act("reduce", time, dimension)


def mark() -> Act:
    """The next step begins."""
    return Act("mark")


def barrier(dimension: str = "dp") -> Act:
    """All ranks wait for each other, and nothing is sent."""
    return Act("barrier", 0, dimension)


def send(peer: int, time: int, *, eager: bool = False) -> Act:
    """A message; one that is eager does not wait for who receives it."""
    return Act("send", time, peer=peer, eager=eager)


def receive(peer: int, time: int) -> Act:
    return Act("recv", time, peer=peer)


@dataclass(slots=True)
class _Ran:
    act: Act
    launch: int
    start: int
    end: int
    waited: int


class Machine:
    """Runs programs.

    Args:
        programs: what each rank does, in one step where no `mark` begins another one.
        room: of so many launches the first has to be through before the next one returns.
    """

    def __init__(self, programs: Mapping[int, Sequence[Act]], room: int = 1 << 30) -> None:
        self.programs = dict(programs)
        self.room = room
        # When the n-th collective, or message from one rank to another, has all who take part.
        self.met: dict[tuple[Any, ...], dict[int, int]] = {}
        self.ran: dict[int, list[_Ran]] = {}
        self.waits: dict[int, list[tuple[str, int, int]]] = {}
        self.ends: dict[int, int] = {}
        self.marks: dict[int, list[int]] = {}
        before: object = None
        while before != self.met:
            before = {key: dict(value) for key, value in self.met.items()}
            for rank in self.programs:
                self._run(rank)

    @property
    def iteration_ns(self) -> int:
        """Mean over ranks and steps, as an analysis has it."""
        lengths = [
            max(self.ends[rank], *(one.end for one in self.ran[rank])) / len(self.marks[rank])
            for rank in self.programs
        ]
        return round(sum(lengths) / len(lengths))

    def _run(self, rank: int) -> None:
        now = 0
        ran: list[_Ran] = []
        waits: list[tuple[str, int, int]] = []
        marks = [0]
        free: dict[int, int] = {}
        after: dict[int, int] = {}
        counts: dict[tuple[Any, ...], int] = {}
        for act in self.programs[rank]:
            if act.what == "cpu":
                now += act.time
            elif act.what in ("load", "collect"):
                waits.append((act.what, now, now + act.time))
                now += act.time
            elif act.what == "mark":
                marks.append(now)
            elif act.what in ("sync", "device"):
                begin = now
                ends = [free.get(MAIN, 0)] if act.what == "sync" else list(free.values())
                now = max([begin + COST, *(end + RETURN for end in ends if end)])
                waits.append((act.what, begin, now))
            elif act.what == "join":
                waits.append(("wait", now, now + CALL))
                after[MAIN] = free[SIDE]
                now += CALL
            else:
                if act.what == "side":
                    waits.append(("wait", now, now + CALL))
                    after[SIDE] = free[MAIN]
                    now += CALL
                begin = now
                if len(ran) >= self.room:
                    now = max(now, ran[-self.room].end + RETURN)
                if act.what == "copy" and act.stream in free:
                    now = max(now, free[act.stream] + RETURN)
                start = max(
                    now + LATENCY,
                    free.get(act.stream, -GAP) + GAP,
                    after.pop(act.stream, -GAP) + GAP,
                )
                end = self._end(rank, act, start, counts)
                ran.append(_Ran(act, now, start, end, now - begin))
                free[act.stream] = end
                now = end if act.what == "copy" else now + CALL
        self.ran[rank], self.waits[rank] = ran, waits
        self.ends[rank], self.marks[rank] = now, marks

    def _end(self, rank: int, act: Act, start: int, counts: dict[tuple[Any, ...], int]) -> int:
        if act.what in ("run", "side", "copy"):
            return start + act.time
        key: tuple[Any, ...] = (act.what, act.name)
        if act.what == "send":
            key = (rank, act.peer)
        elif act.what == "recv":
            key = (act.peer, rank)
        counts[key] = counts.get(key, 0) + 1
        there = self.met.setdefault((*key, counts[key]), {})
        there[rank] = start
        last = start if act.eager else max(there.values())
        return last + act.time

    def record(self, folder: Path) -> Path:
        """Write the traces."""
        for rank in self.programs:
            self._write(rank, folder / f"rank-{rank}.json")
        return folder

    def _write(self, rank: int, path: Path) -> None:
        size = len(self.programs)
        trace = TraceBuilder(rank, size)
        for number, (begin, end) in enumerate(pairwise([*self.marks[rank], self.ends[rank]]), 1):
            trace.step(number, begin, end)
        names = {"sync": "cudaStreamSynchronize", "device": "cudaDeviceSynchronize"}
        for what, begin, end in self.waits[rank]:
            if what == "load":
                trace.op(LOADER, begin, end)
                continue
            if what == "collect":
                trace.annotation("garbage collection (generation 2)", begin, end)
                continue
            trace.call(names.get(what, "cudaStreamWaitEvent"), begin, end)
        for one in self.ran[rank]:
            act = one.act
            args: dict[str, Any] | None = None
            name = act.name
            if act.what in ("reduce", "barrier"):
                name = NCCL
                kind = "allreduce" if act.what == "reduce" else "barrier"
                args = collective_args(kind, act.name, size=size)
            elif act.what in ("send", "recv"):
                name = SENDRECV
                args = collective_args(act.what, "pp", size=size)
                args["Dst Rank" if act.what == "send" else "Src Rank"] = act.peer
            trace.gpu(name, one.start, one.end, stream=act.stream, args=args)
            begin, number = one.launch - one.waited, {"correlation": trace.correlation}
            call = "cudaMemcpyAsync" if name.startswith("Memcpy") else "cudaLaunchKernel"
            until = one.end if act.what == "copy" else one.launch + CALL
            trace.call(call, begin, until, args=number, tid=act.thread)
            if act.thread == BACKWARD:
                engine = "autograd::engine::evaluate_function: MmBackward0"
                trace.op(engine, one.launch, one.launch + CALL, tid=BACKWARD)
        trace.write(path)
