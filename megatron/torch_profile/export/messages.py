# SPDX-License-Identifier: Apache-2.0
"""What the user's log says of an export on its way. Times are `time.monotonic()`, in seconds."""

from __future__ import annotations

import time

from megatron.torch_profile.export.compression import Written
from megatron.torch_profile.export.trace_export import Export
from megatron.torch_profile.log import logger
from megatron.torch_trace.wording import count, megabytes, seconds, size


def say_lost(what: Export, part: str, why: str) -> None:
    """One line about what an export has cost: the trace, or what goes with it."""
    logger.warning(
        "rank %d could not write the %s of iterations %s: %s", what.rank, part, what.window, why
    )


def say_begun(
    what: Export, expected_mb: float | None, stop_seconds: float, held_seconds: float
) -> None:
    """One line about a window that is over, and how long training was held at its end."""
    logger.info(
        "rank %d writes the trace of iterations %s%s; training was held %s by the profiler's stop "
        "and %s by the hand-over",
        what.rank,
        what.window,
        "" if expected_mb is None else f" (about {megabytes(expected_mb)} raw)",
        seconds(stop_seconds),
        seconds(held_seconds),
    )


def say_progress(what: Export, started: float, written_bytes: int) -> None:
    """One line about an export that takes long."""
    logger.info(
        "rank %d still writes the trace of iterations %s: %s, %s so far",
        what.rank,
        what.window,
        seconds(round(time.monotonic() - started)),
        size(written_bytes),
    )


def say_written(what: Export, written: Written, started: float, held_seconds: float) -> None:
    """One line about a finished trace, and one if it tells nothing of the GPU."""
    logger.info(
        "rank %d wrote %s: %s (%s raw, %s events) in %s, of which training was held %s",
        what.rank,
        written.path,
        size(written.file_bytes),
        size(written.raw_bytes),
        count(written.events),
        seconds(time.monotonic() - started),
        seconds(held_seconds),
    )
    if (written.launches or what.gpu) and not written.kernels:
        logger.warning(
            "rank %d: %d kernel launches and not one kernel in the trace, so it tells nothing of "
            "the GPU; another profiler (nsys, DCGM) may hold CUPTI, or the user may lack the "
            "privilege to read GPU events",
            what.rank,
            written.launches,
        )
