# SPDX-License-Identifier: Apache-2.0
"""Writes snapshots beside training: a thread pickles them, piece by piece.

The pickle goes out unbuffered, so the thread lets go of the GIL after every 64 KiB, and training
gets it. A file has its name only when it is whole, and never takes the place of another.
"""

from __future__ import annotations

import json
import os
import pickle
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from megatron.torch_profile.log import Slug, say, warn
from megatron.torch_profile.memory.history import Contents
from megatron.torch_trace.allocator.purpose.owners import Owners
from megatron.torch_trace.files.atomic import atomic_path
from megatron.torch_trace.wording import counted, seconds, size

_PROTOCOL = 4
"""Of the pickle: frames of 64 KiB, and every Python that torch runs on reads it."""
_ENTRIES_AT_ONCE = 2_000


@dataclass(frozen=True, slots=True)
class Target:
    """The files of one snapshot.

    Args:
        snapshot: the pickle; its folder may not be there yet.
        owners: whose memory the addresses in it are.
    """

    snapshot: Path
    owners: Path

    @classmethod
    def of(cls, folder: Path, stem: str) -> Target:
        """`<stem>.memory_snapshot.pickle` and `<stem>.memory_owners.json` in a folder."""
        return cls(folder / f"{stem}.memory_snapshot.pickle", folder / f"{stem}.memory_owners.json")


def write(contents: Contents, owners: Owners, target: Target) -> int:
    """Write a snapshot, first whose memory it is: who finds a snapshot finds both.

    Returns:
        Bytes of the snapshot.

    Raises:
        FileExistsError: there is one already, and it stays.
        OSError: the disk is full, or gone.
    """
    target.snapshot.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(target.owners, replace=False) as unfinished:
        unfinished.write_text(
            json.dumps({"schema": 1, **msgspec.to_builtins(owners)}, indent=1) + "\n"
        )
    with atomic_path(target.snapshot, replace=False) as unfinished:
        with unfinished.open("wb", buffering=0) as file:
            pickle.dump(contents, _WholeWrites(file), protocol=_PROTOCOL)
        return unfinished.stat().st_size


class _WholeWrites:
    """A raw file that writes all of what it is given, or raises: a full disk takes a part."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        while len(view):
            view = view[self._file.write(view) :]
        return len(data)


class SnapshotWriter:
    """Writes the snapshots of one rank, each in a thread of its own.

    Args:
        rank: whose.
        exit_timeout: seconds that the end of the process waits for them.
    """

    def __init__(self, rank: int, exit_timeout: float) -> None:
        self._rank = rank
        self._exit_timeout = exit_timeout
        self._threads: list[threading.Thread] = []
        self._pid = os.getpid()

    @property
    def in_flight(self) -> int:
        """Snapshots that are not on disk yet."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        return len(self._threads)

    def begin(
        self, contents: Contents, owners: Owners, target: Target, held_seconds: float
    ) -> None:
        """Have a snapshot written, which is the thread's from now on.

        Args:
            contents: of the snapshot.
            owners: whose memory it tells of.
            target: the files.
            held_seconds: how long training was held for it, for the log.
        """
        held = [contents]

        def writing() -> None:
            contents = held.pop()
            began = time.monotonic()
            try:
                written = write(contents, owners, target)
            except Exception as error:
                self._failed(target, error)
            else:
                self._done(target, written, contents, time.monotonic() - began, held_seconds)
            _let_go(contents)

        del contents
        _in_a_thread(writing, self._threads)

    def wait(self, bound: float | None = None) -> None:
        """Wait for what is being written, and give up after the bound."""
        if os.getpid() != self._pid:  # a fork of training has none of its threads
            return
        bound = self._exit_timeout if bound is None else bound
        deadline = time.monotonic() + bound
        if self.in_flight:
            say(
                Slug.MEMORY_SNAPSHOT,
                "rank %d waits at most %s for %s",
                self._rank,
                seconds(bound),
                counted(self.in_flight, "memory snapshot"),
            )
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if self.in_flight:
            self._warn("gives up its memory snapshot after %s", seconds(bound))
        self._threads.clear()

    def _done(
        self, target: Target, written: int, contents: Contents, took: float, held: float
    ) -> None:
        entries = sum(map(len, contents.get("device_traces") or ()))
        say(
            Slug.MEMORY_SNAPSHOT,
            "rank %d wrote %s: %s, %s of history, in %s; training was held for %s",
            self._rank,
            target.snapshot,
            size(written),
            counted(entries, "entry", "entries"),
            seconds(took),
            seconds(held),
        )

    def _failed(self, target: Target, error: Exception) -> None:
        self._warn("could not write %s: %s", target.snapshot, reason(error))

    def _warn(self, message: str, *values: object) -> None:
        warn(Slug.MEMORY_FAILED, f"rank %d {message}", self._rank, *values)


def reason(error: Exception) -> str:
    """An error in a clause, without the name of the file, which stands before it."""
    if isinstance(error, FileExistsError):
        return "a file of that name is there, and stays as it is"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}"


def _in_a_thread(work: Callable[[], None], threads: list[threading.Thread]) -> None:
    thread = threading.Thread(target=work, name="torch-profile-memory", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # a limit on processes; then training is held
        work()
    else:
        threads.append(thread)


def _let_go(contents: Contents) -> None:
    """Piece by piece: millions of objects freed at once would hold the GIL."""
    for trace in contents.get("device_traces") or ():
        while trace:
            del trace[-_ENTRIES_AT_ONCE:]
