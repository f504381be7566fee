# SPDX-License-Identifier: Apache-2.0
"""What must not outlive this process: processes that read for it, files that are unfinished.

A `finally` removes them where the work ends by itself. A signal may end this process anywhere, also
between making a file and the `finally`: therefore each is noted here before it is made, and
`clear` removes what is noted. A process can be noted only after it was started: what ends this one
waits for that moment.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess

_processes: dict[int, int] = {}
_paths: dict[Path, int] = {}
"""Each with the process that noted it: a forked child must not remove what is its parent's."""
_starting = 0
_late: list[int] = []
"""Signals that came while a process was being started."""


@contextmanager
def being_started() -> Iterator[None]:
    """Inside, a process is started and noted, whatever signal comes."""
    global _starting
    _starting += 1
    try:
        yield
    finally:
        _starting -= 1
        while _late and not _starting:
            signal.raise_signal(_late.pop())


def must_wait(number: int) -> bool:
    """Whether a signal comes too early, and comes again when `clear` knows every process."""
    if _starting:
        _late.append(number)
    return _starting > 0


def started(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """A child of this process, which goes with it.

    Args:
        command: its program and arguments.
        options: of `subprocess.Popen`.

    Raises:
        OSError: it cannot be started.
    """
    import subprocess

    with being_started():
        process = subprocess.Popen(command, **options)
        _processes[process.pid] = os.getpid()
    return process


def forget_process(pid: int) -> None:
    """It has ended."""
    _processes.pop(pid, None)


@contextmanager
def temporary(path: Path) -> Iterator[Path]:
    """A file or folder that is not there afterwards, whatever happens inside."""
    _paths[path] = os.getpid()
    try:
        yield path
    finally:
        _remove(path)
        _paths.pop(path, None)


def clear() -> None:
    """End the processes, then remove the files that are noted."""
    me = os.getpid()
    for pid, owner in list(_processes.items()):
        if owner == me:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    for path, owner in list(_paths.items()):
        if owner == me:
            _remove(path)


def _remove(path: Path) -> None:
    # Its folder may be gone, or the disk no longer to be written: then there is nothing to do.
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            # Imported here: most have no folder, and it takes as long as unpacking 5 MB.
            from shutil import rmtree

            rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
