# SPDX-License-Identifier: Apache-2.0
"""A bounded wait that does not take a machine that stood still for somebody who does not answer."""

from __future__ import annotations

import threading

_SLICES = 10


def joined(thread: threading.Thread, seconds: float) -> bool:
    """Wait for the end of a thread; whether it has ended.

    A machine that is suspended, or gives its cores to others, stands still for the thread, too, and
    no clock tells that. So such a time costs a tenth of the bound at most.

    Args:
        thread: has been started.
        seconds: the bound.
    """
    for _ in range(_SLICES):
        thread.join(seconds / _SLICES)
        if not thread.is_alive():
            return True
    return False
