# SPDX-License-Identifier: Apache-2.0
"""Processes that write a trace beside training: a forked child, or a program of its own.

The child holds a copy of Kineto's result and needs nothing else. It touches neither CUDA nor NCCL
nor Python's atexit: it writes files and leaves by _exit. The program shares nothing with training
and can only compress what was saved.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, NoReturn, Protocol

from megatron.torch_profile.export import trace_export
from megatron.torch_profile.export.compression import (
    DRAW_BACKWARD,
    DROP_LATE,
    CutShortError,
    compress,
    keep_whole_events,
)
from megatron.torch_profile.export.own_process import be_killed_first
from megatron.torch_profile.export.trace_export import Export

_SHRUGGED_OFF = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
_COMPRESS = "megatron.torch_profile.export.compression"
_REAP_SECONDS = 1.0
"""How long training waits for a killed process to be gone: one that hangs in a file system is not
even killed."""
_ANSWER_BYTES = 1 << 16
"""The most that a forked process can say."""


class Writer(Protocol):
    """A process that writes one trace."""

    def poll(self) -> dict[str, Any] | None:
        """None while it runs; then the fields of `Written`, an `error`, or how it `died`."""

    def cpu_seconds(self) -> float:
        """CPU time that it has spent, in seconds."""

    def can_be_ended(self) -> bool:
        """Whether it can be ended without the process that trains."""

    def written_bytes(self) -> int:
        """What it has written so far."""

    def kill(self) -> None:
        """End it and reap it."""


class Child:
    """A forked process; its result comes through memory that both share.

    No pipe: training may have no file left to open.
    """

    def __init__(self, pid: int, answer: mmap.mmap) -> None:
        self._pid = pid
        self._answer = answer

    def poll(self) -> dict[str, Any] | None:
        """None while it runs; its result, its error, or how it died."""
        try:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
        except ChildProcessError:  # it has ended, and somebody else has taken its status
            pid, status = self._pid, 0
        if pid == 0:
            return None
        answer = self._answer[:].rstrip(b"\0")
        self._answer.close()
        if (result := _result(answer)) is not None:
            return result
        if os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            if os.WTERMSIG(status) in _CRASHES:
                # What crashed there would crash training too, were it tried again here.
                return {"error": f"the process that wrote it crashed ({name})"}
            return {"died": f"was killed by {name}"}
        return {"died": f"ended with status {os.waitstatus_to_exitcode(status)}"}

    def cpu_seconds(self) -> float:
        """CPU time that it has spent, in seconds."""
        return _cpu_seconds(self._pid)

    def can_be_ended(self) -> bool:
        """It is a process."""
        return True

    def written_bytes(self) -> int:
        """What it has written so far."""
        return _written_bytes(self._pid)

    def kill(self) -> None:
        """End it and reap it."""
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            _wait_a_moment(lambda: os.waitpid(self._pid, os.WNOHANG)[0] != 0)
        self._answer.close()


class Program:
    """A process of its own that compresses; its result is the last line on its stdout."""

    def __init__(self, command: list[str]) -> None:
        # It must find what this process finds, wherever that came from.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        # No pipe: that would have to be emptied in time, and a process that this one has started
        # and left behind would hold it open.
        self._stdout = _unnamed_file()
        self._process = subprocess.Popen(
            command, env=environment, stdout=self._stdout, start_new_session=True
        )
        self.pid = self._process.pid

    def poll(self) -> dict[str, Any] | None:
        """None while it runs; its result, its error, or how it died."""
        if self._process.poll() is None:
            return None
        with self._stdout as stdout:
            stdout.seek(0)
            answer = stdout.read()
        if (result := _result(answer)) is not None:
            return result
        return {"died": f"ended with status {self._process.returncode}"}

    def cpu_seconds(self) -> float:
        """CPU time that it has spent, in seconds."""
        return _cpu_seconds(self.pid)

    def can_be_ended(self) -> bool:
        """It is a process."""
        return True

    def written_bytes(self) -> int:
        """What it has written so far."""
        return _written_bytes(self.pid)

    def kill(self) -> None:
        """End it and reap it."""
        self._process.kill()
        _wait_a_moment(lambda: self._process.poll() is not None)
        self._stdout.close()


def _unnamed_file() -> IO[bytes]:
    if hasattr(os, "memfd_create"):  # needs no room in $TMPDIR
        return os.fdopen(os.memfd_create("answer"), "w+b")
    return tempfile.TemporaryFile()


def _result(answer: bytes) -> dict[str, Any] | None:
    """What a process has answered; None if nothing, or what is no answer."""
    try:
        result: dict[str, Any] = json.loads(answer.splitlines()[-1])
    except (IndexError, ValueError):  # whoever starts with Python may print (sitecustomize)
        return None
    return result


def _wait_a_moment(gone: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _REAP_SECONDS
    while not gone() and time.monotonic() < deadline:
        time.sleep(0.01)


def _cpu_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _written_bytes(pid: int) -> int:
    # Asking the file system for the size could hang with it.
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("wchar:"))


def fork(profiler: Any, export: Export) -> Child:
    """Write a trace in a forked child; the caller is held for the fork itself.

    Raises:
        OSError: the system gives no process, or no memory to answer in.
    """
    for stream in (sys.stdout, sys.stderr):
        # What is buffered would be written twice. A signal may have interrupted a print, which
        # cannot be entered again; and whoever trains may have closed them, or their reader is gone.
        with suppress(Exception):
            stream.flush()
    answer = mmap.mmap(-1, _ANSWER_BYTES)
    # A signal in the child, before it shrugs them off, would find the parent's handler.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SHRUGGED_OFF)
    try:
        with warnings.catch_warnings():
            # Python warns of forking with threads; the child only writes files and uses none.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _write_and_exit(profiler, export, answer)
    except OSError:
        answer.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return Child(pid, answer)


def _write_and_exit(profiler: Any, export: Export, shared: mmap.mmap) -> NoReturn:
    answer: dict[str, Any] = {}
    try:
        gc.disable()  # collecting would copy the parent's pages one by one
        for number in _SHRUGGED_OFF:
            signal.signal(number, signal.SIG_IGN)
        be_killed_first()
        _close_all_files()
        if not export.urgent:
            os.nice(10)
        if not export.prepared:
            export.prepare()
        trace_export.save(profiler, export)
        written = compress(
            export.raw,
            export.target,
            export.name.compression,
            draw_backward=export.draws_backward,
        )
        answer = asdict(written)
    except CutShortError as error:
        answer = {"error": str(error)}
        with suppress(BaseException):
            answer["error"] = keep_whole_events(export.raw, export.target)
    except BaseException as error:
        answer = {"error": str(error) or type(error).__name__}
    finally:
        # Nobody reads if the parent was killed; then too this process must not go on as training.
        with suppress(BaseException):
            shared.write(json.dumps(answer).encode()[:_ANSWER_BYTES])
        os._exit(0)


def _close_all_files() -> None:
    """The parent's sockets must close when the parent dies, so that its peers notice."""
    try:
        held = [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
    except OSError:  # no Linux
        held = list(range(os.sysconf("SC_OPEN_MAX")))
    # Not one by one up to the limit, which containers set to a thousand million.
    for number in held:
        if number > 2:
            with suppress(OSError):
                os.close(number)


def save_and_compress(profiler: Any, export: Export) -> Program:
    """Save a raw trace here and now, and have a process of its own compress it.

    Raises:
        Exception: what the file system, Kineto or our own check find wrong.
    """
    trace_export.save(profiler, export)
    return compressing(export)


def compressing(export: Export, *, drop_late: bool = False) -> Program:
    """A process of its own that compresses a raw trace.

    Args:
        export: the export, whose raw trace is there.
        drop_late: drop what its profiler recorded after the end of the window.

    Raises:
        OSError: the system gives no process.
    """
    command = [sys.executable, "-m", _COMPRESS, str(export.raw), str(export.target)]
    wanted = {DROP_LATE: drop_late, DRAW_BACKWARD: export.draws_backward}
    words = [word for word, is_wanted in wanted.items() if is_wanted]
    return Program([*command, export.name.compression, *words])
