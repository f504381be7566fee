# SPDX-License-Identifier: Apache-2.0
"""This process: what memory it holds, who is to go first should memory run out, how it ends.

How much memory it may still take says `megatron.torch_trace.system.memory`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path


def resident_bytes() -> int:
    """Memory that this process holds; 0 on systems that do not tell (macOS)."""
    return _pages(1) * os.sysconf("SC_PAGE_SIZE")


def address_space_bytes() -> int:
    """What counts against `ulimit -v`; 0 on systems that do not tell (macOS)."""
    return _pages(0) * os.sysconf("SC_PAGE_SIZE")


def _pages(field: int) -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[field])
    except OSError:
        return 0


def be_killed_first(proc: Path = Path("/proc")) -> None:
    """Should memory run out, the kernel is to end this process and not the training beside it.

    Source: the kernel's documentation of /proc/<pid>/oom_score_adj; 1000 is the most.
    """
    with suppress(OSError):
        (proc / "self" / "oom_score_adj").write_text("1000")


def end_with_parent() -> None:
    """Have the kernel end this process with training, however that ends."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def leave_without_destructors() -> None:
    """Have this process end as it would, without the destructors of C++, should it end now.

    Kineto's destructors wait for its threads, which a fork does not have, and take down what a
    thread may still work with. glibc's `on_exit` passes the status on; Python has ended by then,
    and has written what it held.
    """
    with suppress(AttributeError, OSError):  # another C library
        libc = ctypes.CDLL(None)
        libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)
