# SPDX-License-Identifier: Apache-2.0
"""Which rank this process is, where the launcher tells it in words that Megatron does not read.

Megatron reads RANK, WORLD_SIZE, LOCAL_RANK and the rendezvous' address from the environment, as
torchrun and DeepSpeed set them. mpirun and srun have variables of their own. What is set stays.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from megatron.torch_profile.plan import slurm
from megatron.torch_trace.errors import UsageError

_PORTS, _PORT_RANGE = 20_000, 10_000
# The same on all ranks of a job, and rarely the same in two.
_JOB = ("OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE", "PBS_JOBID", "LSB_JOBID", "SLURM_JOB_ID")


@dataclass(frozen=True, slots=True)
class _Launcher:
    """Names of a launcher's variables; None where it has none for that."""

    rank: str
    world_size: str
    local_rank: str | None = None
    local_size: str | None = None


# An MPI inside a SLURM job starts its own daemons with srun, so its words count before SLURM's.
_MPI = (
    _Launcher(
        *(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))
    ),
    _Launcher(*(f"MV2_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))),
    # MPICH, Intel MPI and others; srun --mpi=pmi2 sets the first two only.
    _Launcher("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


def rank_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Variables to set for this process.

    Args:
        given: the environment.

    Returns:
        Nothing under torchrun, or where nobody has started more than one process.

    Raises:
        UsageError: several nodes, and nobody has said where rank 0 is.
    """
    if "RANK" in given:
        return {}
    for launcher in _MPI:
        if launcher.rank in given and given.get(launcher.world_size, "1") != "1":
            if launcher.local_rank not in given and "SLURM_PROCID" in given:
                break  # srun, which tells more by its own variables
            return _missing(_of(launcher, given), given)
    return slurm.rank_environment(given)


def _of(launcher: _Launcher, given: Mapping[str, str]) -> dict[str, str]:
    rank, world_size = given[launcher.rank], given[launcher.world_size]
    # Who does not tell of nodes has started its ranks on this one.
    local_rank = given.get(launcher.local_rank or "", rank)
    local_size = given.get(launcher.local_size or "", world_size)
    if local_size != world_size and "MASTER_ADDR" not in given:
        raise UsageError(
            f"MASTER_ADDR is not set, and {launcher.world_size} {world_size} ranks run on several "
            "nodes: pass the name of rank 0's node (mpirun -x MASTER_ADDR=NODE -x "
            "MASTER_PORT=29500)."
        )
    return {
        "RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": local_size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_port(given)),
    }


def _missing(wanted: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in wanted.items() if name not in given}


def _port(given: Mapping[str, str]) -> int:
    job = next((given[name] for name in _JOB if name in given), "")
    return _PORTS + zlib.crc32(job.encode()) % _PORT_RANGE
