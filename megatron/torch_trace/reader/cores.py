# SPDX-License-Identifier: Apache-2.0
"""How many processes may work at once."""

from __future__ import annotations

import os

_LARGEST_POOL = 4


def available_cores(most: int = _LARGEST_POOL) -> int:
    """Cores that this process may use: affinity, SLURM's grant, the cgroup's quota.

    Args:
        most: never more than this. For the blocks of one file 4 is right: this process must read,
            cut and write for all of them.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    granted = os.environ.get("SLURM_CPUS_PER_TASK", "")
    if granted.isdecimal():
        cores = min(cores, int(granted))
    return max(1, min(cores, _cgroup_cores(most), most))


def _cgroup_cores(most: int) -> int:
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:  # noqa: PTH123
            quota, period = file.read().split()
        return max(1, round(int(quota) / int(period)))
    except (OSError, ValueError):
        return most
