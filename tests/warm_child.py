# SPDX-License-Identifier: Apache-2.0
"""Programs as children of this process that start at once: forks of warm_python.py.

Unlike what warm_command.py starts, such a program is what its number says: whoever sends it a
signal, waits for it or looks for its children meets the program itself.
"""

from __future__ import annotations

import ctypes
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer

_ADOPT_ORPHANS = 36
"""PR_SET_CHILD_SUBREAPER: what loses its parent comes to us and not to the first process."""


class Child:
    """A program that runs, with the part of subprocess.Popen that tests need.

    Attributes:
        pid: its number, and that of its session and group.
        stdout: what it prints, errors among it.
    """

    def __init__(self, pid: int, output: int) -> None:
        self.pid = pid
        self.stdout = os.fdopen(output, errors="replace")
        self._status: int | None = None

    def poll(self) -> int | None:
        """The status with which it ended, or None."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status

    def wait(self, timeout: float) -> int:
        end = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(0.005)
        return status

    def ended(self, timeout: float) -> tuple[int, str]:
        """Its status, and what it has printed since; what takes longer is killed."""
        too_late = Timer(timeout, self._kill_all)
        too_late.start()
        with self.stdout:
            output = self.stdout.read()
        status = self.wait(timeout)
        too_late.cancel()
        return status, output

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def _kill_all(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


class WarmPython:
    """Where forks are asked for; `command` is `python` as far as other programs see."""

    def __init__(self, folder: Path) -> None:
        self.socket, self.command = folder / "socket", folder / "python"

    def start(self, *words: str, environment: Mapping[str, str]) -> Child:
        """What `python WORDS` does, in this folder and in a session of its own."""
        ctypes.CDLL(None).prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)
        ours, its = os.pipe()
        request = {"command": words, "environment": dict(environment), "folder": str(Path.cwd())}
        sent = json.dumps({**request, "child": True}).encode()
        with socket.socket(socket.AF_UNIX) as server, Path(os.devnull).open() as nothing:
            server.connect(str(self.socket))
            files = [nothing.fileno(), its, its]
            socket.send_fds(server, [len(sent).to_bytes(8, "big")], files)
            server.sendall(sent)
            os.close(its)
            return Child(int(server.recv(16)), ours)


@contextmanager
def warm_python(
    environment: Mapping[str, str], libraries: Sequence[str] = ()
) -> Iterator[WarmPython]:
    """Start a Python that has imported libraries, of which programs are forks.

    Args:
        environment: which libraries read when they are imported.
        libraries: what is imported; without, what Megatron's training loop imports.
    """
    beside = Path(__file__).parent
    # Not below pytest's own folder: the name of a socket has at most 107 characters.
    with TemporaryDirectory(prefix="warm-") as folder:
        warm = WarmPython(Path(folder))
        words = [sys.executable, "-SEs", str(beside / "warm_command.py"), str(warm.socket)]
        warm.command.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        warm.command.chmod(0o700)
        with subprocess.Popen(
            [sys.executable, str(beside / "warm_python.py"), str(warm.socket), *libraries],
            env={**environment, "PYTHONPATH": str(beside / "startup")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        ) as server:
            assert server.stdout
            assert server.stdout.readline() == "ready\n"
            yield warm
            ctypes.CDLL(None).prctl(_ADOPT_ORPHANS, 0, 0, 0, 0)
            server.terminate()
