# SPDX-License-Identifier: Apache-2.0
"""How much a window may grow: the user's bound on trace size, host memory, free disk space.

Kineto does not tell how many events it holds, so the size of the trace to come is estimated: from
the trace before, or, roughly, from the growth of this process since the window began. Measured on
H200, 24 layers: 60 MB grown while recording became 167 MB of raw trace, and 35 MB became 43 MB.
After the stop, Kineto holds about five bytes for each byte of the raw trace (735 MB in 4 GB).
"""

from __future__ import annotations

import resource
import shutil
from collections.abc import Callable
from pathlib import Path

from megatron.torch_profile.export.own_process import address_space_bytes, resident_bytes
from megatron.torch_profile.plan.trace_size import HELD_MB_PER_TRACE_MB
from megatron.torch_trace.system.memory import host_memory
from megatron.torch_trace.wording import counted, megabytes, size

MB = 1_000_000
TRACE_BYTES_PER_GROWN_BYTE = 2.0
_ADDRESS_SPACE = 64 * MB
_RESERVE = 0.05
"""Share of the memory limit that a window leaves free."""


class WindowLimits:
    """Watches one window: asked once an iteration, while it records.

    Args:
        max_trace_mb: the user's bound on the raw trace, None for none.
        expected_mb: raw size of one iteration, from the trace before; None while there is none
            (it may still be being written when the window begins).
    """

    def __init__(self, max_trace_mb: float | None, expected_mb: Callable[[], float | None]) -> None:
        self._max_trace_mb = max_trace_mb
        self._expected_mb = expected_mb
        self._resident = resident_bytes()

    def estimated_mb(self, iterations: int) -> float:
        """Raw size of the trace so far."""
        grown = max(0, resident_bytes() - self._resident)
        expected = self._expected_mb()
        if expected is not None:
            return expected * iterations
        return grown * TRACE_BYTES_PER_GROWN_BYTE / MB

    def reached(self, iterations: int) -> str | None:
        """Why the window must end now, or None.

        Args:
            iterations: how many are recorded so far.
        """
        estimate = self.estimated_mb(iterations)
        if self._max_trace_mb is not None and iterations:
            # The next iteration would take the trace past the bound.
            following = estimate * (iterations + 1) / iterations
            if following > self._max_trace_mb:
                return (
                    f"the trace holds about {megabytes(estimate)} raw and the next iteration would "
                    f"take it past --torch-profile-max-trace-mb {self._max_trace_mb:g}"
                )
        host = host_memory()
        needed = estimate * HELD_MB_PER_TRACE_MB
        if host.free / MB < host.limit / MB * _RESERVE + needed:
            return (
                f"host memory is short: {size(host.free)} of {size(host.limit)} are "
                f"left, and closing the window needs about {megabytes(needed)}"
            )
        return None


def short_of_address_space() -> str | None:
    """Why no window may begin, or None.

    A limit such as `ulimit -v` is reached in the middle of an allocation, and where that is the C
    library's own, for a thread of the profiler's, the process is aborted.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    left = limit - address_space_bytes()
    if left >= _ADDRESS_SPACE:
        return None
    return (
        f"{size(max(0, left))} of address space are left of its limit of "
        f"{size(limit)} (ulimit -v), and a window needs {size(_ADDRESS_SPACE)}"
    )


def short_of_space(folder: Path, raw_mb: float, writers: int) -> str | None:
    """Why the traces of a node will not fit a folder, or None.

    Args:
        folder: where they grow.
        raw_mb: estimated raw size of one.
        writers: ranks of the node that write there.
    """
    free = shutil.disk_usage(folder).free / MB
    # Raw and compressed lie side by side at the end; compressed is a tenth.
    needed = raw_mb * 1.1 * writers
    if needed <= free:
        return None
    return (
        f"{counted(writers, 'trace')} of about {megabytes(raw_mb)} raw would take "
        f"{megabytes(needed)}, and {folder} has {megabytes(free)} free"
    )
