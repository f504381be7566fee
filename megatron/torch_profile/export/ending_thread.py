# SPDX-License-Identifier: Apache-2.0
"""A thread that ends a window beside training: the profiler's stop, the raw trace, its memory.

All three run in torch's C++ without the GIL and at low priority. A program of its own then drops
what the profiler recorded after the window's end, compresses, and gives the trace its name.
"""

from __future__ import annotations

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
from megatron.torch_trace.system.lasting_thread import LastingThread

_low_priority = LastingThread("torch-profile-stop", nicer=10)
"""Of all windows: what a window has taken is free memory of its arena, for the next one."""
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
        self._wrote_before = 0
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
        return max(0, _written_by(self._at_work) - self._wrote_before)

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
        """Call it where a CPU need not be waited for by whoever holds the GIL."""

        def noted() -> Any:
            self._at_work = threading.get_native_id()
            self._wrote_before = _written_by(self._at_work)
            return call()

        # The process may be killed any moment: then with training's priority, right here.
        return noted() if self.export.urgent else _low_priority.answer(noted)

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


def _written_by(thread: int) -> int:
    """Bytes that a thread of this process has written so far, by the system's number of it."""
    with suppress(OSError):
        lines = Path(f"/proc/self/task/{thread}/io").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("wchar:"))
    return 0
