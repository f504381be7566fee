# SPDX-License-Identifier: Apache-2.0
"""Memory that this process may use: its control group's limit, not the machine's size."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from megatron.torch_trace.system.control_groups import CGROUPS, PROC, control_groups


@dataclass(frozen=True, slots=True)
class HostMemory:
    """A limit and what of it is taken.

    Args:
        limit: bytes.
        used: bytes, without page cache that the kernel can drop.
    """

    limit: int
    used: int

    @property
    def free(self) -> int:
        """Bytes left below the limit."""
        return max(0, self.limit - self.used)


def host_memory(cgroups: Path = CGROUPS, proc: Path = PROC) -> HostMemory:
    """The tightest limit of the machine, this process's control group and those above it.

    Source: the kernel's documentation of cgroup v2 (memory.max, memory.current) and v1
    (memory.limit_in_bytes, memory.usage_in_bytes).
    """
    try:
        machine = {
            name: int(rest.split()[0]) * 1024
            for name, _, rest in (
                line.partition(":") for line in (proc / "meminfo").read_text().splitlines()
            )
        }
        tightest = HostMemory(machine["MemTotal"], machine["MemTotal"] - machine["MemAvailable"])
    except (OSError, KeyError):  # macOS, or a container that hides it: nothing is known to be short
        tightest = HostMemory(sys.maxsize, 0)
    for folder, is_v2 in control_groups("memory", cgroups, proc):
        names = "memory.max memory.current" if is_v2 else _V1_NAMES
        limit_file, used_file = (folder / name for name in names.split())
        try:
            # "max" (v2) is no number; v1 says a number larger than any machine.
            limit = int(limit_file.read_text())
            used = int(used_file.read_text()) - _droppable(folder)
        except (OSError, ValueError):
            continue
        if limit - used < tightest.free:
            tightest = HostMemory(limit, used)
    return tightest


_V1_NAMES = "memory.limit_in_bytes memory.usage_in_bytes"


def _droppable(folder: Path) -> int:
    with suppress(OSError):
        for line in (folder / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name in ("inactive_file", "total_inactive_file"):
                return int(value)
    return 0
