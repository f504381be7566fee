# SPDX-License-Identifier: Apache-2.0
"""A process that ends while threads of its profiler are gone, or still at work."""

from __future__ import annotations

import ctypes
from contextlib import suppress


def leave_without_destructors() -> None:
    """Have this process end as it would, without the destructors of C++, should it end now.

    Kineto's destructors wait for its threads, which a fork does not have, and take down what a
    thread may still work with. glibc's `on_exit` passes the status on; Python has ended by then,
    and has written what it held.
    """
    with suppress(AttributeError, OSError):  # another C library
        libc = ctypes.CDLL(None)
        libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)
