# SPDX-License-Identifier: Apache-2.0
"""Calls that copy from or to pageable memory of the host, for which the CPU waits.

CUDA copies such memory by way of a buffer of its own: it first waits until the stream has come to
the copy, and returns when the memory was read (CUDA Runtime API, "API synchronization behavior").
Small copies are put into the command itself and wait for nothing; no copy of pinned memory waits.
"""

from __future__ import annotations

import numpy as np

from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.intervals import Ints, ints

_LONG_NS = 50_000
"""Shorter calls have not waited: one that only launches takes some us."""
_EARLY_NS = 50_000
"""The memory is read so long before the copy ends, or less."""


def blocking_copies(timeline: Timeline, *, from_host: bool = False) -> tuple[Ints, Ints]:
    """The calls, and when the first copy of each began on the GPU, ns.

    Args:
        from_host: leave out copies to the host, whose result the CPU asks for: it has to wait.
    """
    activity, launches = timeline.activity, timeline.launches
    calls, gpu = activity.calls, activity.gpu
    pageable = activity.named(gpu, _from_host if from_host else is_pageable)
    rows = np.flatnonzero(pageable & (launches.call != NONE))
    call = launches.call[rows]
    end = calls.end[call]
    waited = (end - calls.start[call] > _LONG_NS) & (end >= gpu.end[rows] - _EARLY_NS)
    rows, call = rows[waited], call[waited]
    order = np.argsort(gpu.start[rows], kind="stable")
    found, first = np.unique(call[order], return_index=True)
    return ints(found), ints(gpu.start[rows][order][first])


def is_pageable(name: str) -> bool:
    """Whether GPU work of this name copies from or to memory of the host that is not pinned."""
    return "pageable" in name.lower()


def _from_host(name: str) -> bool:
    return is_pageable(name) and not name.lower().startswith(("memcpy dtoh", "copydevicetohost"))
