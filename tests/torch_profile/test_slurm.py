# SPDX-License-Identifier: Apache-2.0
"""What a rank learns from SLURM where torchrun has told it nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron.torch_profile.slurm import rank_environment

SRUN = {
    "SLURM_JOB_ID": "123456",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "a17,b3",
}
TOLD = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "a17",
    "MASTER_PORT": "23456",
}


def test_a_task_of_srun_is_a_rank() -> None:
    assert rank_environment(SRUN) == TOLD


def test_what_the_user_exports_stays() -> None:
    mine = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    assert rank_environment({**SRUN, **mine}) == {
        name: value for name, value in TOLD.items() if name not in mine
    }


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({}, id="no SLURM"),
        pytest.param({**SRUN, "RANK": "0", "WORLD_SIZE": "8"}, id="torchrun under srun"),
        pytest.param({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, id="the batch script itself"),
        pytest.param({**SRUN, "SLURM_STEP_NUM_TASKS": "1"}, id="one task"),
    ],
)
def test_elsewhere_nothing_is_set(given: dict[str, str]) -> None:
    assert rank_environment(given) == {}


def test_a_compressed_list_of_nodes_is_asked_of_scontrol(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text('#!/bin/sh\n[ "$3" = "n[07-09]" ] && printf "n07\\nn08\\nn09\\n"\n')
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    told = rank_environment({**SRUN, "SLURM_STEP_NODELIST": "n[07-09]"})
    assert told["MASTER_ADDR"] == "n07"


def test_on_one_node_the_address_is_this_machine() -> None:
    told = rank_environment({**SRUN, "SLURM_STEP_NUM_NODES": "1"})
    assert told["MASTER_ADDR"] == "127.0.0.1"
