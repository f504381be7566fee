# SPDX-License-Identifier: Apache-2.0
"""Host memory that this process may use: its control group's limit, not the machine's size."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


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


def host_memory(cgroups: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> HostMemory:
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
    for folder, limit_name, used_name in _groups(cgroups, proc):
        try:
            # "max" (v2) is no number; v1 says a number larger than any machine.
            limit = int((folder / limit_name).read_text())
            used = int((folder / used_name).read_text()) - _droppable(folder)
        except (OSError, ValueError):
            continue
        if limit - used < tightest.free:
            tightest = HostMemory(limit, used)
    return tightest


def resident_bytes() -> int:
    """Memory that this process holds; 0 on systems that do not tell (macOS)."""
    try:
        fields = Path("/proc/self/statm").read_text().split()
    except OSError:
        return 0
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def be_killed_first(proc: Path = Path("/proc")) -> None:
    """Should memory run out, the kernel is to end this process and not the training beside it.

    Source: the kernel's documentation of /proc/<pid>/oom_score_adj; 1000 is the most.
    """
    with suppress(OSError):
        (proc / "self" / "oom_score_adj").write_text("1000")


def _groups(cgroups: Path, proc: Path) -> Iterator[tuple[Path, str, str]]:
    """Folders of this process's control group and of all above it, any of which may limit it."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = cgroups, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base, names = cgroups / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        group = Path(path.lstrip("/"))
        for part in (group, *group.parents):
            yield (base / part, *names)


def _droppable(folder: Path) -> int:
    for line in (folder / "memory.stat").read_text().splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0
