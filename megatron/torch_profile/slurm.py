# SPDX-License-Identifier: Apache-2.0
"""srun with one task for each rank: what torchrun would tell a rank, from what SLURM tells a task.

Megatron reads RANK, WORLD_SIZE, LOCAL_RANK and the rendezvous' address from the environment. Under
torchrun they are there, and what is there stays.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

_PORTS = 20_000
_PORT_RANGE = 10_000


def rank_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Variables to set for a rank that srun started directly.

    Args:
        given: the environment.

    Returns:
        Nothing under torchrun, outside SLURM, in the batch script itself, or for a single task.
    """
    # SLURM_STEP_NUM_TASKS is what only srun sets; the batch script has SLURM_PROCID too.
    tasks = given.get("SLURM_STEP_NUM_TASKS", "1")
    if "RANK" in given or tasks == "1" or "SLURM_PROCID" not in given:
        return {}
    wanted = {
        "RANK": given["SLURM_PROCID"],
        "WORLD_SIZE": tasks,
        "LOCAL_RANK": given.get("SLURM_LOCALID", "0"),
        "MASTER_ADDR": _first_host(given),
        # Of the job, so that all ranks choose the same and two jobs rarely do.
        "MASTER_PORT": str(_PORTS + int(given.get("SLURM_JOB_ID", "0")) % _PORT_RANGE),
    }
    return {name: value for name, value in wanted.items() if name not in given}


def _first_host(given: Mapping[str, str]) -> str:
    hosts = given.get("SLURM_STEP_NODELIST", "")
    if given.get("SLURM_STEP_NUM_NODES", "1") == "1":
        return "127.0.0.1"
    if "[" not in hosts:
        return hosts.partition(",")[0]
    shown = subprocess.run(
        ["scontrol", "show", "hostnames", hosts], capture_output=True, text=True, check=True
    )
    return shown.stdout.split()[0]
