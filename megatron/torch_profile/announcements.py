# SPDX-License-Identifier: Apache-2.0
"""What the user's log says of an export on its way. Times are `time.monotonic()`, in seconds."""

from __future__ import annotations

import time

from megatron.torch_profile.compress import Written
from megatron.torch_profile.export import Export
from megatron.torch_profile.limits import MB
from megatron.torch_profile.log import logger


def say_lost(what: Export, part: str, why: str) -> None:
    """One line about what an export has cost: the trace, or what goes with it."""
    logger.warning(
        "rank %d could not write the %s of iterations %s: %s", what.rank, part, what.window, why
    )


def say_progress(what: Export, started: float, written_bytes: int) -> None:
    """One line about an export that takes long."""
    logger.info(
        "rank %d still writes the trace of iterations %s: %.0f s, %.0f MB so far",
        what.rank,
        what.window,
        time.monotonic() - started,
        written_bytes / MB,
    )


def say_written(what: Export, written: Written, started: float, held_seconds: float) -> None:
    """One line about a finished trace, and one if it tells nothing of the GPU."""
    logger.info(
        "rank %d wrote %s: %.1f MB (%.1f MB raw, %d events) in %.1f s, of which training was held "
        "%.0f ms",
        what.rank,
        written.path,
        written.file_bytes / MB,
        written.raw_bytes / MB,
        written.events,
        time.monotonic() - started,
        held_seconds * 1e3,
    )
    if (written.launches or what.gpu) and not written.kernels:
        logger.warning(
            "rank %d: %d kernel launches and not one kernel in the trace, so it tells nothing of "
            "the GPU; another profiler (nsys, DCGM) may hold CUPTI, or the user may lack the "
            "privilege to read GPU events",
            what.rank,
            written.launches,
        )
