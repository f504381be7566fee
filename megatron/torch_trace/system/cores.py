# SPDX-License-Identifier: Apache-2.0
"""How many processes may work at once."""

from __future__ import annotations

import os
from pathlib import Path

from megatron.torch_trace.system.control_groups import CGROUPS, PROC, control_groups

MOST_FOR_ONE_FILE = 4
"""This process must read, cut and write for all of them: more would wait for it."""
MOST_FOR_RANKS = 64
"""Where each reads a file of its own."""


def available_cores(
    most: int = MOST_FOR_ONE_FILE, *, cgroups: Path = CGROUPS, proc: Path = PROC
) -> int:
    """Cores that this process may use: affinity, SLURM's grant, its control groups' quotas.

    Args:
        most: never more than this.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    granted = os.environ.get("SLURM_CPUS_PER_TASK", "")
    if granted.isdecimal():
        cores = min(cores, int(granted))
    for folder, is_v2 in control_groups("cpu", cgroups, proc):
        try:
            cores = min(cores, _quota(folder, is_v2))
        except (OSError, ValueError):
            continue  # none is set: "max" (v2) or -1 (v1)
    return max(1, min(cores, most))


def _quota(folder: Path, is_v2: bool) -> int:
    if is_v2:
        quota, period = map(int, (folder / "cpu.max").read_text().split())
    else:
        quota, period = (
            int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period")
        )
    if quota <= 0:
        raise ValueError
    return max(1, round(quota / period))
