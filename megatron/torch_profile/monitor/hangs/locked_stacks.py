# SPDX-License-Identifier: Apache-2.0
"""Python stacks of a rank of which one thread keeps Python's lock, so that no other thread runs.

Nothing written in Python can run then. faulthandler has a thread in C that needs no lock: it writes
the stacks unless it is told in time, again and again, to wait longer.

A fork has no such thread, and Python waits for it when it ends. So there is none during a fork.
"""

from __future__ import annotations

import faulthandler
import os
import threading
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import IO

from megatron.torch_profile.log import Slug, warn
from megatron.torch_trace.wording import path_text, seconds

_running: LockedStacks | None = None
"""Whose thread there is: faulthandler has one in a process."""
_turn = threading.RLock()
"""Whoever holds it may start the thread or end it; held for as long as a fork takes, so nobody may
ask a file system meanwhile."""


class LockedStacks:
    """Of one rank.

    Args:
        path: of a file that is empty until stacks are written.
        limit: seconds without a call of `renew`.
        rank: for the log.
    """

    def __init__(self, path: Path, limit: float, rank: int) -> None:
        self._path = path
        self._limit = limit
        self._rank = rank
        self._file: IO[bytes] | None = None
        self._failed = False

    def renew(self) -> None:
        """This thread runs, so nobody keeps the lock."""
        if self._failed:
            return
        try:
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._path.open("xb")
            elif self._told():
                return
            _watch_forks()
            with _turn:
                self.start()
        except (OSError, RuntimeError, ValueError):
            # A full disk, or a file of an earlier training of this process.
            self._failed = True

    def _told(self) -> bool:
        """Whether stacks were written, which is said once."""
        if self._file is None or not os.fstat(self._file.fileno()).st_size:
            return False
        if not self._failed:
            self._failed = True  # what is written stays
            warn(
                Slug.HANG,
                "rank %d: a thread kept Python's lock for more than %s, or the process was "
                "stopped: %s has the stacks",
                self._rank,
                seconds(self._limit),
                path_text(self._path),
            )
        return True

    def start(self) -> None:
        """Start the thread, or tell it to wait anew.

        Raises:
            OSError, RuntimeError, ValueError: there can be none.
        """
        global _running
        if self._file is not None and not self._failed:
            faulthandler.dump_traceback_later(self._limit, file=self._file)
            _running = self

    def forget(self) -> None:
        """In a fork: the file is the parent's."""
        self._file, self._failed = None, True

    def stop(self) -> None:
        """Training has ended."""
        global _running
        if self._file is None:
            return
        with _turn:
            if not self._failed:
                faulthandler.cancel_dump_traceback_later()
            _running = None
        with suppress(OSError):
            # Training may end before `renew` is called once more.
            if not self._told():
                self._path.unlink()
                self._path.parent.rmdir()  # unless others have left something
        self._failed = True
        self._file.close()


@lru_cache(maxsize=1)
def _watch_forks() -> None:
    os.register_at_fork(before=_pause, after_in_parent=_go_on, after_in_child=_forget)


def _pause() -> None:
    _turn.acquire()
    if _running is not None:
        faulthandler.cancel_dump_traceback_later()


def _go_on() -> None:
    if _running is not None:
        with suppress(OSError, RuntimeError, ValueError):
            _running.start()
    with suppress(RuntimeError):  # a fork was under way when the first thread was started
        _turn.release()


def _forget() -> None:
    global _running, _turn
    if _running is not None:
        _running.forget()
    _running, _turn = None, threading.RLock()
