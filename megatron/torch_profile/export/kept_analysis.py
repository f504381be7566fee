# SPDX-License-Identifier: Apache-2.0
"""The analysis of a rank's own trace, kept beside it for `torch-trace analyze`.

    python -m megatron.torch_profile.export.kept_analysis TRACE

A program of its own, with the least priority: training lends it no memory and imports none of its
libraries. One at a time and bounded; a failure is said once and costs only the
kept analysis.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

from megatron.torch_profile.export.compression import Written
from megatron.torch_profile.export.process_memory import be_killed_first
from megatron.torch_profile.export.trace_export import Export
from megatron.torch_profile.export.writers import Program
from megatron.torch_profile.log import Slug, say, warn
from megatron.torch_trace.errors import TorchTraceError
from megatron.torch_trace.system.memory import host_memory
from megatron.torch_trace.wording import iterations, seconds

_PROGRAM = "megatron.torch_profile.export.kept_analysis"
_MOST_SECONDS = 600.0
_POLL_SECONDS = 0.1
_BASE_BYTES = 200 << 20
_BYTES_PER_RAW_BYTE = 0.5
"""Of memory; with Python frames, which are counted and not kept, it is less."""


class KeptAnalyses:
    """Sees finished traces of this rank through their analysis.

    Args:
        exit_timeout: seconds that the end of the process waits for it.
    """

    def __init__(self, exit_timeout: float) -> None:
        self._exit_timeout = exit_timeout
        self._pid = os.getpid()
        self._waiting: deque[Export] = deque()
        self._running: tuple[Export, Program, float] | None = None
        self._failed = False
        atexit.register(self.wait)

    @property
    def running(self) -> bool:
        """Whether an analysis runs beside training, or waits for its turn."""
        return self._running is not None or bool(self._waiting)

    def begin(self, export: Export, written: Written) -> None:
        """Have a finished trace analysed, if that is wanted and there is something to analyse."""
        if self._failed or export.urgent or export.partials == "never":
            return
        if export.partials == "auto" and not written.kernels:
            return
        if host_memory().free < _BASE_BYTES + _BYTES_PER_RAW_BYTE * written.raw_bytes:
            self._fail(export, "the host has too little free memory")
            return
        self._waiting.append(export)
        self.poll()

    def poll(self) -> None:
        """Look after it without waiting: called once an iteration."""
        if self._running is not None:
            export, program, deadline = self._running
            answer = program.poll()
            if answer is None and time.monotonic() < deadline:
                return
            self._running = None
            if answer is None:
                program.kill()
                answer = {"error": f"the analysis was not done after {seconds(_MOST_SECONDS)}"}
            why = answer.get("error") or answer.get("died")
            if why:
                self._fail(export, why)
        if self._waiting:
            export = self._waiting.popleft()
            try:
                program = Program([sys.executable, "-m", _PROGRAM, str(export.target)])
            except OSError as error:
                self._fail(export, error.strerror or str(error))
                return
            self._running = (export, program, time.monotonic() + _MOST_SECONDS)

    def wait(self) -> None:
        """At the end of the process: wait for what is under way, within the bound."""
        atexit.unregister(self.wait)
        if os.getpid() != self._pid:  # a fork of training that ends: this is not its child
            return
        deadline = time.monotonic() + self._exit_timeout
        if self._running is not None:
            export = self._running[0]
            say(
                Slug.ANALYSIS_WAITS,
                "rank %d waits up to %s for the analysis of its trace of %s",
                export.rank,
                seconds(self._exit_timeout),
                iterations(export.window),
            )
        while self._running is not None and time.monotonic() < deadline:
            self.poll()
            time.sleep(_POLL_SECONDS if self._running is not None else 0)
        self.abandon()

    def abandon(self) -> None:
        """Drop what is under way and what was to come; any later analysis does without it."""
        self._waiting.clear()
        if self._running is not None:
            self._running[1].kill()
            self._running = None

    def _fail(self, export: Export, why: str) -> None:
        self._failed = True
        self._waiting.clear()
        warn(
            Slug.ANALYSIS_FAILED,
            "rank %d keeps no analyses beside its traces from %s on: %s; torch-trace "
            "analyze reads the traces instead",
            export.rank,
            iterations(export.window),
            why,
        )


def main(argv: list[str]) -> None:
    """Analyse one trace and keep the result; says on stdout, as JSON, what went wrong if so."""
    os.nice(19)
    _end_with_parent()
    # Training needs the cores more.
    for name in ("POLARS_MAX_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    answer: dict[str, Any] = {}
    try:
        from megatron.torch_trace.analysis.run.kept_analyses import keep

        kept = keep([Path(argv[0])], jobs=1)
        if kept.skipped:
            answer["error"] = kept.skipped[0].reason
    except TorchTraceError as error:
        answer["error"] = str(error)
    except Exception as error:
        # A line in training's log, no traceback between its own.
        answer["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(answer))


def _end_with_parent() -> None:
    """Have the kernel end this process with training, however that ends."""
    if sys.platform != "linux":
        return
    import ctypes
    import signal

    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


if __name__ == "__main__":
    be_killed_first()
    main(sys.argv[1:])
