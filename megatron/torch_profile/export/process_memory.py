# SPDX-License-Identifier: Apache-2.0
"""Memory that this process holds, and who is to go first should memory run out.

How much it may still take says `megatron.torch_trace.system.memory`.
"""

from __future__ import annotations

import os
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
