# SPDX-License-Identifier: Apache-2.0
"""What a rank learns from mpirun, in the words of each MPI."""

from __future__ import annotations

import pytest

from megatron.torch_profile.plan.launchers import rank_environment
from megatron.torch_trace.errors import UsageError

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_MCA_ess_base_jobid": "1234",
}
MPICH = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "3", "MPI_LOCALNRANKS": "4"}
TOLD = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "3",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "127.0.0.1",
}


@pytest.mark.parametrize(
    "given",
    [
        OPEN_MPI,
        MPICH,
        {name.replace("OMPI", "MV2"): value for name, value in OPEN_MPI.items()},
        {"PMI_RANK": "3", "PMI_SIZE": "4"},
        # In a SLURM job, srun has started one daemon of mpirun on each node.
        {**OPEN_MPI, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"},
    ],
    ids=["Open MPI", "MPICH", "MVAPICH", "PMI alone", "in a SLURM job"],
)
def test_a_process_of_mpirun_is_a_rank(given: dict[str, str]) -> None:
    told = rank_environment(given)
    assert 20_000 <= int(told.pop("MASTER_PORT")) < 30_000
    assert told == TOLD


def test_all_ranks_of_a_job_find_each_other_and_two_jobs_do_not() -> None:
    other_rank = {**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0"}
    other_job = {**OPEN_MPI, "OMPI_MCA_ess_base_jobid": "1235"}
    ports = [rank_environment(g)["MASTER_PORT"] for g in (OPEN_MPI, other_rank, other_job)]
    assert ports[0] == ports[1] != ports[2]


def test_what_the_user_gives_stays_on_several_nodes_too() -> None:
    given = {
        **OPEN_MPI,
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
    }
    told = rank_environment(given)
    assert not told.keys() & given.keys()
    assert told["RANK"] == "3"


def test_several_nodes_without_an_address_are_one_sentence() -> None:
    with pytest.raises(UsageError, match=r"^MASTER_ADDR is not set, and OMPI_COMM_WORLD_SIZE 4 "):
        rank_environment({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"})


def test_a_pmi_that_srun_speaks_leaves_the_word_to_srun() -> None:
    srun = {
        "PMI_RANK": "3", "PMI_SIZE": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1",
        "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "a,b",
    }  # fmt: skip
    told = rank_environment(srun)
    assert told["LOCAL_RANK"] == "1"
    assert told["MASTER_ADDR"] == "a"


@pytest.mark.parametrize(
    "given", [{}, {**OPEN_MPI, "RANK": "0"}, {**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "1"}]
)
def test_elsewhere_nothing_is_set(given: dict[str, str]) -> None:
    assert rank_environment(given) == {}
