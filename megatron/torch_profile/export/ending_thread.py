# SPDX-License-Identifier: Apache-2.0
"""A thread that ends a window beside training: the profiler's stop, the raw trace, its memory.

All three run in torch's C++ without the GIL and at low priority. A program of its own then drops
what the profiler recorded after the window's end, compresses, and gives the trace its name.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from megatron.torch_profile.export import disk, messages, trace_export
from megatron.torch_profile.export.own_process import leave_without_destructors
from megatron.torch_profile.export.trace_export import Export
from megatron.torch_profile.export.writers import Program, compressing
from megatron.torch_trace.format.file_names import UnfinishedName
from megatron.torch_trace.system.freed_memory import give_back

_NICE = 10
_NOTHING = "something else in this process has ended torch's profiler"


class Recording(Protocol):
    """What a stopped profiler holds."""

    @property
    def recorded(self) -> bool:
        """Whether it can be saved; else it holds nothing that must be freed."""

    def save(self, path: str) -> None:
        """Write the raw trace."""

    def free(self) -> None:
        """Give its memory back."""


class EndingThread:
    """Ends one window and writes its trace; a `Writer`.

    Args:
        stop: stops the profiler, in whichever thread.
        export: the export as planned.
        expected_mb: estimated raw size.
        writers: ranks of this node that write to the same disk.
    """

    def __init__(
        self, stop: Callable[[], Recording], export: Export, expected_mb: float, writers: int
    ) -> None:
        self.export = export
        self.stopping = True
        """Whether the profiler still runs."""
        self._stop = stop
        self._expected_mb = expected_mb
        self._writers = writers
        self._at_work = 0  # the thread of low priority, by the system's number
        self._answer: dict[str, Any] | None = None
        self._program: Program | None = None
        self._again = True
        self._thread = threading.Thread(target=self._run, name="torch-profile-end", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # a limit on processes; then training is held
            self._run()

    def poll(self) -> dict[str, Any] | None:
        """None while it runs; then the fields of `Written`, an `error`, or how it `died`."""
        if self._thread.is_alive():
            return None
        if self._program is None:
            return self._answer
        ended = self._program.poll()
        if ended is not None and "died" in ended and self._again:
            self._compress_again(self._program, ended["died"])
            return None
        return ended

    def cpu_seconds(self) -> float:
        """CPU time that it has spent, in seconds."""
        return self._program.cpu_seconds() if self._program is not None else 0.0

    def written_bytes(self) -> int:
        """What it has written so far."""
        if self._program is not None:
            return self._program.written_bytes()
        with suppress(OSError):
            lines = Path(f"/proc/self/task/{self._at_work}/io").read_text().splitlines()
            return sum(int(line.split()[1]) for line in lines if line.startswith("wchar:"))
        return 0

    def can_be_ended(self) -> bool:
        """Not while the thread runs: it may only wait, and ends with the process."""
        return self._program is not None

    def kill(self) -> None:
        """End what can be ended; a thread that waits for a file system ends with the process."""
        self._again = False
        if self._program is not None:
            self._program.kill()
        elif self._thread.is_alive():
            # What it works with must not be taken down under it.
            leave_without_destructors()

    def _run(self) -> None:
        try:
            self._answer = self._end()
        except BaseException as error:
            self._answer = {"error": str(error) or type(error).__name__}

    def _end(self) -> dict[str, Any]:
        try:
            recording: Recording = self._at_low_priority(self._stop)
        finally:
            self.stopping = False
        if not recording.recorded:
            return {"error": _NOTHING}
        try:
            export = disk.prepared(self.export, self._expected_mb, self._writers)
            if export is None:
                return {}
            self.export = export
            with trace_export.plain_path(export.raw) as path:
                self._at_low_priority(lambda: recording.save(path))
        finally:
            self._at_low_priority(recording.free)
            # With training's priority: who allocates meanwhile waits for it.
            give_back()
        trace_export.take_begun(export)
        self._program = compressing(export, drop_late=True)
        return {}

    def _at_low_priority(self, call: Callable[[], Any]) -> Any:
        """Call it in a thread of its own: who has once lowered its priority cannot raise it, and
        whoever holds the GIL must not have to wait for a CPU."""
        done: list[Any] = []

        def calling() -> None:
            self._at_work = threading.get_native_id()
            try:
                if not self.export.urgent:
                    with suppress(OSError):
                        os.setpriority(
                            os.PRIO_PROCESS,
                            self._at_work,
                            os.getpriority(os.PRIO_PROCESS, self._at_work) + _NICE,
                        )
                done.append(call())
            except BaseException as error:
                done.append(error)

        thread = threading.Thread(target=calling, name="torch-profile-stop", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return call()
        thread.join()
        if isinstance(done[0], BaseException):
            raise done[0]
        return done[0]

    def _compress_again(self, program: Program, how: str) -> None:
        self._again = False
        messages.compressed_again(self.export, how)
        left = UnfinishedName(self.export.target.name, program.pid, raw=False)
        with suppress(OSError):
            self.export.raw.with_name(str(left)).unlink()
        try:
            self._program = compressing(self.export, drop_late=True)
        except OSError as error:
            self._program, self._answer = None, {"error": str(error)}
