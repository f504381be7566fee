# SPDX-License-Identifier: Apache-2.0
"""What is made of a rank's finished traces beside training: artifacts, and kept analyses.

Each by a program of its own (`artifacts.py`, `kept_analysis.py`), one at a time and bounded. A
failure costs only what was to be made: artifacts of one trace, or all kept analyses from there on,
said once.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from megatron.torch_profile.exits import at_exit, not_at_exit
from megatron.torch_profile.export import messages
from megatron.torch_profile.export.artifacts import KEY_AVERAGES, STACKS
from megatron.torch_profile.export.compression import Written
from megatron.torch_profile.export.trace_export import Export
from megatron.torch_profile.export.writers import Program
from megatron.torch_trace.system.memory import host_memory
from megatron.torch_trace.wording import seconds

_ROOM = "megatron.torch_profile.export"
_MOST_SECONDS = 600.0
_POLL_SECONDS = 0.1
_BASE_BYTES = 200 << 20
_BYTES_PER_RAW_BYTE = 0.5
"""Of memory; with Python frames, which an analysis counts and does not keep, it is less."""
_NO_MEMORY = "the host has too little free memory"


@dataclass(frozen=True, slots=True)
class _Task:
    """A program about one trace.

    Args:
        command: its module in this room, and its arguments.
    """

    export: Export
    command: tuple[str, ...]

    @property
    def analyses(self) -> bool:
        return self.command[0] == "kept_analysis"

    @property
    def thing(self) -> str:
        return "analysis" if self.analyses else "artifacts"


class FollowUps:
    """Sees finished traces of this rank through what is made of them.

    Args:
        exit_timeout: seconds that the end of the process waits for it.
    """

    def __init__(self, exit_timeout: float) -> None:
        self._exit_timeout = exit_timeout
        self._pid = os.getpid()
        self._waiting: deque[_Task] = deque()
        self._running: tuple[_Task, Program, float] | None = None
        self._keeps_analyses = True
        at_exit(self.wait)

    @property
    def running(self) -> bool:
        """Whether anything runs beside training, or waits for its turn."""
        return self._running is not None or bool(self._waiting)

    def begin(self, export: Export, written: Written) -> None:
        """Have made what is wanted of a finished trace, unless the process may be killed."""
        if export.urgent:
            return
        tasks = [task for task in (_artifacts(export), self._analysis(export, written)) if task]
        if tasks and (host_memory().free < _BASE_BYTES + _BYTES_PER_RAW_BYTE * written.raw_bytes):
            for task in tasks:
                self._failed(task, _NO_MEMORY)
            return
        self._waiting.extend(tasks)
        self.poll()

    def poll(self) -> None:
        """Look after it without waiting: called once an iteration."""
        if self._running is not None:
            task, program, deadline = self._running
            answer = program.poll()
            if answer is None and time.monotonic() < deadline:
                return
            self._running = None
            self._conclude(task, program, answer)
        if self._waiting:
            task = self._waiting.popleft()
            module, *arguments = task.command
            try:
                program = Program([sys.executable, "-m", f"{_ROOM}.{module}", *arguments])
            except OSError as error:
                self._failed(task, error.strerror or str(error))
                return
            self._running = (task, program, time.monotonic() + _MOST_SECONDS)

    def wait(self) -> None:
        """At the end of the process: wait for what is under way, within the bound."""
        not_at_exit(self.wait)
        if os.getpid() != self._pid:  # a fork of training that ends: this is not its child
            return
        deadline = time.monotonic() + self._exit_timeout
        if self._running is not None:
            task = self._running[0]
            messages.waits_for_follow_up(task.export, task.thing, self._exit_timeout)
        while self._running is not None and time.monotonic() < deadline:
            self.poll()
            time.sleep(_POLL_SECONDS if self._running is not None else 0)
        left = [self._running[0], *self._waiting] if self._running is not None else self._waiting
        for task in left:
            if not task.analyses:
                messages.lost(task.export, "artifacts", "training ended before they were written")
        self.abandon()

    def abandon(self) -> None:
        """Drop what is under way and what was to come: `torch-trace` makes all of it later."""
        self._waiting.clear()
        if self._running is not None:
            self._running[1].kill()
            self._running = None

    def _analysis(self, export: Export, written: Written) -> _Task | None:
        wanted = export.partials == "always" or (export.partials == "auto" and written.kernels)
        if not wanted or not self._keeps_analyses:
            return None
        return _Task(export, ("kept_analysis", str(export.target)))

    def _conclude(self, task: _Task, program: Program, answer: dict[str, Any] | None) -> None:
        if answer is None:
            program.kill()
            thing = "the analysis was" if task.analyses else "they were"
            answer = {"error": f"{thing} not done after {seconds(_MOST_SECONDS)}"}
        why = answer.get("error") or answer.get("died")
        if why:
            self._failed(task, why)

    def _failed(self, task: _Task, why: str) -> None:
        if not task.analyses:
            messages.lost(task.export, "artifacts", why)
            return
        self._keeps_analyses = False
        self._waiting = deque(task for task in self._waiting if not task.analyses)
        messages.keeps_no_analyses(task.export, why)


def _artifacts(export: Export) -> _Task | None:
    wanted = {KEY_AVERAGES: export.key_averages, STACKS: export.stacks}
    words = [
        f"{kind}={export.folder / export.name.artifact(f'{kind}.txt')}"
        for kind, asked in wanted.items()
        if asked
    ]
    return _Task(export, ("artifacts", str(export.target), *words)) if words else None
