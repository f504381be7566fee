# SPDX-License-Identifier: Apache-2.0
"""Lines for the user's log, and the one way out for a user's mistake.

Every line begins with `[torch-profile SLUG]`. A slug says which line it is and stays when the
sentence behind it becomes a better one, so scripts and `docs/flags.md` hold on to the slug.
Megatron sets the root logger's level to WARNING, so these lines have a logger of their own.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from contextlib import suppress
from enum import Enum
from typing import NoReturn

from megatron.torch_trace.errors import TorchTraceError

PREFIX = "torch-profile"


class Slug(Enum):
    """Which line of the log it is; `docs/flags.md` tells of each in one sentence."""

    PLAN = "plan"
    CPU = "cpu"
    CPU_FLAGS = "cpu-flags"
    MODULE_SPANS = "module-spans"
    NO_MODULE_SPANS = "no-module-spans"
    SPANS_FAILED = "spans-failed"
    STACKS = "stacks"
    SIGNAL_UNDELIVERABLE = "signal-undeliverable"
    RANKS_END_APART = "ranks-end-apart"
    TIMERS_SYNCHRONISE = "timers-synchronise"
    LAUNCHES_BLOCK = "launches-block"
    OTHER_GPU_PROFILER = "other-gpu-profiler"
    RUN_RECORD_FAILED = "run-record-failed"
    NO_PROFILE = "no-profile"
    PROFILING_STOPPED = "profiling-stopped"
    RECORDED_NOTHING = "recorded-nothing"
    STEP_NOT_NEXT = "step-not-next"
    ATTACHED_AGAIN = "attached-again"
    MODEL_NOT_ATTACHED = "model-not-attached"
    SIGNAL = "signal"
    WINDOW_SKIPPED = "window-skipped"
    WINDOW_LEFT_OUT = "window-left-out"
    WINDOW_WAITS = "window-waits"
    STOP_HOLDS = "stop-holds-training"
    WINDOW_NOT_BEGUN = "window-not-begun"
    WINDOW_ENDED_EARLY = "window-ended-early"
    WINDOW_SHORT = "window-short"
    WINDOW_LOST = "window-lost"
    CLOCK_SET = "clock-set"
    ITERATION_TIMES = "iteration-times"
    ITERATION_TIMES_FAILED = "iteration-times-failed"
    MEMORY_SHORT = "memory-short"
    MEMORY_HISTORY = "memory-history"
    MEMORY_SNAPSHOT = "memory-snapshot"
    MEMORY_FAILED = "memory-failed"
    OUT_OF_MEMORY = "out-of-memory"
    SCRATCH_UNUSABLE = "scratch-unusable"
    FOLDER_SILENT = "folder-silent"
    EXPORT_BEGUN = "export-begun"
    EXPORT_PROGRESS = "export-progress"
    EXPORT_DONE = "export-done"
    EXPORT_DROPPED = "export-dropped"
    EXPORT_FAILED = "export-failed"
    EXPORT_FROM_TRAINING = "export-from-training"
    EXPORT_AGAIN = "export-again"
    EXPORT_STUCK = "export-stuck"
    EXPORT_WAITS = "export-waits"
    EXPORT_GIVEN_UP = "export-given-up"
    EXPORT_LEFT_RAW = "export-left-raw"
    NO_GPU_EVENTS = "no-gpu-events"
    ANALYSIS_WAITS = "analysis-waits"
    ANALYSIS_FAILED = "analysis-failed"
    SUMMARY = "summary"
    SUMMARY_OFF = "summary-off"
    SUMMARY_WAITS = "summary-waits"
    SUMMARY_FAILED = "summary-failed"
    SUMMARY_GIVEN_UP = "summary-given-up"
    ARTIFACT = "artifact"
    ARTIFACT_TOO_LARGE = "artifact-too-large"
    ARTIFACT_FAILED = "artifact-failed"
    METRICS_FAILED = "metrics-failed"
    DATA_WAIT_UNKNOWN = "data-wait-unknown"
    TELEMETRY_FAILED = "telemetry-failed"
    GPU_SLOW = "gpu-slow"
    REQUEST = "request"
    REQUESTS_FAILED = "requests-failed"
    HANG = "hang"
    SLOW_RANK = "slow-rank"
    MEMORY_GROWS = "memory-grows"
    MONITOR_FAILED = "monitor-failed"
    RECOMPILED = "recompiled"
    FUSED_KERNEL_REFUSED = "fused-kernel-refused"


class _Line(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        prefix = f"[{PREFIX} {record.slug.value}] {level}"  # type: ignore[attr-defined]
        return "\n".join(prefix + line for line in record.getMessage().splitlines())


class _Stdout(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to whatever sys.stdout is now: launchers and tests replace it."""

    def __init__(self) -> None:
        super().__init__(sys.stdout)
        self.setFormatter(_Line())

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stdout
        # What others have printed goes first: all ranks write to one pipe, and a line that is
        # written together with a full buffer may get another rank's output into its middle.
        with suppress(Exception):
            self.stream.flush()
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """A handler of a signal that came amid a `print` may not use Python's buffer: then the line
        goes past it."""
        try:
            if not isinstance(sys.exc_info()[1], RuntimeError):
                raise OSError
            os.write(self.stream.fileno(), f"{self.format(record)}\n".encode())
        except (OSError, ValueError):
            super().handleError(record)


logger = logging.getLogger("megatron.torch_profile")
logger.setLevel(logging.INFO)
logger.propagate = False
if not logger.handlers:
    logger.addHandler(_Stdout())


def say(slug: Slug, message: str, *values: object) -> None:
    """A line of the log, or several: what happens.

    Args:
        slug: which line it is.
        message: with `%s` and the like for the values.
        values: for the message.
    """
    logger.info(message, *values, extra={"slug": slug})


def warn(slug: Slug, message: str, *values: object) -> None:
    """The same of what should not happen."""
    logger.warning(message, *values, extra={"slug": slug})


def environment_rank() -> int:
    """Global rank as torchrun tells it; 0 without it."""
    return int(os.environ.get("RANK", "0"))


def exit_with(error: TorchTraceError, *, grace_seconds: float = 15.0) -> NoReturn:
    """End this rank because of a mistake that all ranks see: one sentence, printed once.

    Rank 0 prints and leaves. The others give the launcher time to end them after rank 0 has
    spoken; where it does not (srun without --kill-on-bad-exit), they print and leave too, so no
    rank ever hangs.

    Args:
        error: its text is the sentence, its `exit_status` the status.
        grace_seconds: how long the other ranks wait.
    """
    if environment_rank() != 0:
        time.sleep(grace_seconds)
    sys.stdout.flush()
    # In one piece: `print` writes the end of the line for itself where Python runs with -u, as
    # torchrun runs it, and another process may write between.
    sys.stderr.write(f"{PREFIX}: error: {error}\n")
    sys.stderr.flush()
    raise SystemExit(error.exit_status)
