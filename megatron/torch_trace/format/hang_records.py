# SPDX-License-Identifier: Apache-2.0
"""What each rank of a job that hangs leaves in the folder of the run.

    <run>/hangs/
        rank-07.iter-0000087.hang.json        where the rank is: written by --torch-profile-on-hang
        rank-07.iter-0000087.flight.pickle    torch's flight record of the same moment, with NCCL
        rank-07.iter-0000087-2.hang.json      a second hang in the same iteration
        rank-07.lock.txt                      stacks by faulthandler, if a thread kept Python's lock

The keys of the JSON are those of `HangRecord`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

HANGS = "hangs"
"""Folder of a run."""
HANG_SUFFIX = ".hang.json"
FLIGHT_SUFFIX = ".flight.pickle"
LOCKED_SUFFIX = ".lock.txt"
_LOCKED = re.compile(r"rank-(?P<rank>\d+)\.lock\.txt")
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+|\?+) in (?P<function>.*)')
_NAME = re.compile(r"rank-(?P<rank>\d+)\.iter-(?P<iteration>\d{7,})(?:-(?P<number>\d+))?")


@dataclass(frozen=True, slots=True)
class HangName:
    """The files of one rank and one hang.

    Args:
        rank: global rank.
        iteration: in which no end was seen; 0 before the first.
        number: 2 for the second hang in this iteration.
        world_size: for the width of the rank's number; None when parsed from a name.
    """

    rank: int
    iteration: int
    number: int = 1
    world_size: int | None = None

    @property
    def stem(self) -> str:
        """What the names of both files begin with."""
        width = len(str(self.world_size - 1)) if self.world_size else 1
        again = f"-{self.number}" if self.number > 1 else ""
        return f"rank-{self.rank:0{width}d}.iter-{self.iteration:07d}{again}"

    @classmethod
    def parse(cls, name: str) -> HangName | None:
        """The rank and hang that a file's name tells; None if it is none of ours."""
        for suffix in (HANG_SUFFIX, FLIGHT_SUFFIX):
            match = _NAME.fullmatch(name.removesuffix(suffix)) if name.endswith(suffix) else None
            if match:
                return cls(int(match["rank"]), int(match["iteration"]), int(match["number"] or 1))
        return None


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """One Python thread.

    Args:
        name: of the thread.
        trains: it runs the training loop.
        stack: `file:line function`, the innermost first.
        code: the source line of the innermost; empty where it cannot be read.
    """

    name: str
    trains: bool
    stack: tuple[str, ...]
    code: str = ""


@dataclass(frozen=True, slots=True)
class HangRecord:
    """Where one rank is when no iteration ends.

    Args:
        rank, world_size, host, pid: who.
        iteration: in which it is; 0 before the first.
        seconds: how long no iteration may take.
        written_ns: ns since 1970.
        began_ns: when the iteration began, ns since 1970.
        logged_iteration, logged_ns: the last line about an iteration in Megatron's log; None before
            the first.
        spans: names that are open, the outermost first.
        modules: paths of modules whose forward runs, the outermost first.
        micro_batch: the one that is computed, from 0; None where it is not known.
        threads: the one that trains first.
        iterations: the last ones that the monitor has measured; empty without it.
        locked: a thread kept Python's lock: the stacks are faulthandler's, and the rest is unknown.
    """

    rank: int
    world_size: int
    host: str
    pid: int
    iteration: int
    seconds: float
    written_ns: int
    began_ns: int
    logged_iteration: int | None = None
    logged_ns: int | None = None
    spans: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    micro_batch: int | None = None
    threads: tuple[ThreadStack, ...] = ()
    iterations: tuple[dict[str, Any], ...] = field(default=())
    locked: bool = False

    @property
    def training(self) -> ThreadStack:
        """The thread that trains."""
        unknown = ThreadStack("", True, ())
        return next((one for one in self.threads if one.trains), unknown)

    def as_text(self) -> str:
        """What the file holds."""
        return json.dumps({"schema": 1, **asdict(self)}) + "\n"

    @classmethod
    def parse(cls, text: bytes) -> HangRecord:
        """The record that a file holds.

        Raises:
            ValueError: it holds none, or only a part.
        """
        try:
            fields: dict[str, Any] = json.loads(text)
            fields.pop("schema", None)
            fields["threads"] = tuple(
                ThreadStack(
                    str(one["name"]),
                    bool(one["trains"]),
                    _words(one["stack"]),
                    str(one.get("code", "")),
                )
                for one in fields.get("threads", ())
            )
            for name in ("spans", "modules"):
                fields[name] = _words(fields.get(name, ()))
            fields["iterations"] = tuple(fields.get("iterations", ()))
            for name in ("rank", "world_size", "iteration", "written_ns", "began_ns"):
                fields[name] = int(fields[name])
            return cls(**{name: fields[name] for name in cls.__slots__ if name in fields})
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise ValueError("no hang record, or only a part of one") from error


def locked_name(rank: int, world_size: int) -> str:
    """The file that faulthandler writes."""
    return f"rank-{rank:0{len(str(world_size - 1))}d}{LOCKED_SUFFIX}"


def locked_rank(name: str) -> int | None:
    """The rank that the name of such a file tells; None if it is none."""
    match = _LOCKED.fullmatch(name)
    return int(match["rank"]) if match else None


def locked_record(text: str, rank: int, like: HangRecord, written_ns: int) -> HangRecord | None:
    """What faulthandler has written, as a record.

    Args:
        text: of the file; each dump lists threads, the one that the process began with as its last.
        rank: whose file it is.
        like: a record of another rank, of the same hang.
        written_ns: when the file was written, ns since 1970.

    Returns:
        None if the text has no stack.
    """
    stacks: list[list[str]] = []
    for line in text.splitlines():
        if "most recent call first" in line:
            stacks.append([])
        elif (frame := _FRAME.fullmatch(line)) and stacks:
            stacks[-1].append(f"{frame['file']}:{frame['line']} {frame['function']}")
    known = [tuple(stack) for stack in stacks if stack]
    if not known:
        return None
    threads = [ThreadStack("MainThread", True, known[-1])]
    threads += [ThreadStack("", False, stack) for stack in known[:-1]]
    return HangRecord(
        rank,
        like.world_size,
        "",
        0,
        like.iteration,
        like.seconds,
        written_ns,
        like.began_ns,
        threads=tuple(threads),
        locked=True,
    )


def _words(value: Sequence[Any]) -> tuple[str, ...]:
    return tuple(str(one) for one in value)
