# SPDX-License-Identifier: Apache-2.0
"""What the user's log says of an export on its way. Times are `time.monotonic()`, in seconds."""

from __future__ import annotations

import time

from megatron.torch_profile.export.compression import Written
from megatron.torch_profile.export.trace_export import Export
from megatron.torch_profile.log import Slug, say, warn
from megatron.torch_trace.wording import counted, iterations, megabytes, seconds, size


def lost(export: Export, part: str, why: str) -> None:
    """One line about what an export has cost: the trace, or what goes with it."""
    warn(
        Slug.EXPORT_FAILED,
        "rank %d could not write the %s of %s: %s",
        export.rank,
        part,
        iterations(export.window),
        why,
    )


def begun(
    export: Export, expected_mb: float | None, stop_seconds: float, held_seconds: float
) -> None:
    """One line about a window that is over, and how long training was held at its end."""
    say(
        Slug.EXPORT_BEGUN,
        "rank %d writes the trace of %s%s; the profiler's stop held training for %s and "
        "the hand-over for %s",
        export.rank,
        iterations(export.window),
        "" if expected_mb is None else f" (about {megabytes(expected_mb)} raw)",
        seconds(stop_seconds),
        seconds(held_seconds),
    )


def begun_beside(
    export: Export, expected_mb: float | None, waited_seconds: float, held_seconds: float
) -> None:
    """One line about a window whose profiler is stopped beside training."""
    say(
        Slug.EXPORT_BEGUN,
        "rank %d writes the trace of %s%s; the profiler stops beside training%s; the hand-over "
        "held training for %s",
        export.rank,
        iterations(export.window),
        "" if expected_mb is None else f" (about {megabytes(expected_mb)} raw)",
        f", which waited {seconds(waited_seconds)} for the GPU" if export.gpu else "",
        seconds(held_seconds),
    )


def progress(export: Export, started: float, written_bytes: int) -> None:
    """One line about an export that takes long."""
    say(
        Slug.EXPORT_PROGRESS,
        "rank %d is still writing the trace of %s: %s on disk after %s",
        export.rank,
        iterations(export.window),
        size(written_bytes) if written_bytes else "nothing",
        seconds(round(time.monotonic() - started)),
    )


def done(export: Export, written: Written, started: float, held_seconds: float) -> None:
    """One line about a finished trace, and one for each thing that it lacks."""
    say(
        Slug.EXPORT_DONE,
        "rank %d wrote %s: %s (%s raw, %s) in %s; training was held for %s",
        export.rank,
        written.path,
        size(written.file_bytes),
        size(written.raw_bytes),
        counted(written.events, "event"),
        seconds(max(0.0, written.ended - started)),
        seconds(held_seconds),
    )
    if (written.launches or export.gpu) and not written.kernels:
        launches = counted(written.launches, "kernel launch", "kernel launches")
        warn(
            Slug.NO_GPU_EVENTS,
            "rank %d: the trace holds %sno kernel, so it says nothing about the GPU; another "
            "profiler (nsys, DCGM) may hold CUPTI, or the user may lack the privilege to read GPU "
            "events",
            export.rank,
            f"{launches} and " if written.launches else "",
        )
    if written.undrawn:
        warn(
            Slug.SPANS_FAILED,
            "rank %d: the trace has no backward spans of modules: %s",
            export.rank,
            written.undrawn,
        )


def waits(export: Export, traces: int, bound: float) -> None:
    """One line about the end of training, which comes when the traces are written."""
    say(
        Slug.EXPORT_WAITS,
        "rank %d waits up to %s for %s to be written",
        export.rank,
        seconds(bound),
        counted(traces, "trace"),
    )


def given_up(export: Export, bound: float) -> None:
    """One line about a trace that training did not wait for any longer."""
    warn(
        Slug.EXPORT_GIVEN_UP,
        "rank %d gives up on the trace of %s after %s (--torch-profile-exit-timeout); "
        "the unfinished trace is %s",
        export.rank,
        iterations(export.window),
        seconds(bound),
        export.raw,
    )


def silent(export: Export, error: TimeoutError, *, dropped: bool) -> None:
    """One line about a folder that does not answer."""
    warn(
        Slug.FOLDER_SILENT,
        "rank %d: %s; the trace of %s is %s",
        export.rank,
        error,
        iterations(export.window),
        "dropped" if dropped else "written when the folder answers",
    )


def short_of_memory(export: Export, bound: float) -> None:
    """One line about a window that begins later."""
    say(
        Slug.MEMORY_SHORT,
        "rank %d waits up to %s before its next window: the host has no memory for another trace "
        "until earlier traces are written",
        export.rank,
        seconds(bound),
    )


def stuck(export: Export, after: float) -> None:
    """One line about a process that no longer moves."""
    warn(
        Slug.EXPORT_STUCK,
        "rank %d: the process that writes the trace of %s has not moved for %s and was "
        "ended; the trace is saved when training ends",
        export.rank,
        iterations(export.window),
        seconds(after),
    )


def saved_by_training(export: Export, why: str) -> None:
    """One line about a trace that no other process can write."""
    warn(
        Slug.EXPORT_FROM_TRAINING,
        "rank %d: training itself saves the trace of %s: %s",
        export.rank,
        iterations(export.window),
        why,
    )


def compressed_again(export: Export, how: str) -> None:
    """One line about a process that was ended and is replaced."""
    warn(
        Slug.EXPORT_AGAIN,
        "rank %d: the process that compressed the trace of %s %s; another one does it",
        export.rank,
        iterations(export.window),
        how,
    )


def left_raw(export: Export, how: str) -> None:
    """One line about a trace that nobody compresses any more."""
    warn(
        Slug.EXPORT_LEFT_RAW,
        "rank %d: the process that compressed the trace of %s %s; the raw trace is %s",
        export.rank,
        iterations(export.window),
        how,
        export.raw,
    )


def waits_for_follow_up(export: Export, thing: str, bound: float) -> None:
    """One line about the end of training, which comes when this is made of a trace."""
    say(
        Slug.ANALYSIS_WAITS,
        "rank %d waits up to %s for the %s of its trace of %s",
        export.rank,
        seconds(bound),
        thing,
        iterations(export.window),
    )


def keeps_no_analyses(export: Export, why: str) -> None:
    """One line about analyses that failed, of this trace and of all that follow."""
    warn(
        Slug.ANALYSIS_FAILED,
        "rank %d keeps no analyses beside its traces from %s on: %s; torch-trace "
        "analyze reads the traces instead",
        export.rank,
        iterations(export.window),
        why,
    )
