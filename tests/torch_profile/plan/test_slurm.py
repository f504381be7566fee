# SPDX-License-Identifier: Apache-2.0
"""What a rank learns from SLURM where torchrun has told it nothing."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from megatron.torch_profile.plan.slurm import (
    batch_script,
    rank_environment,
    ranks_end_apart,
    restarts,
    run_before,
    undeliverable_signal,
)

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


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n[07-09,12]", "n07"),
        ("rack[2-3]n[01-16],b3", "rack2n01"),
        ("gpu-a[5,9]-x", "gpu-a5-x"),
        ("a17,b3", "a17"),
    ],
)
def test_the_first_node_of_a_compressed_list_is_where_ranks_meet(nodes: str, first: str) -> None:
    assert rank_environment({**SRUN, "SLURM_STEP_NODELIST": nodes})["MASTER_ADDR"] == first


@pytest.mark.parametrize(
    ("visible", "local"), [("0", "0"), ("0,1,2,3", "1"), ("GPU-4a,GPU-77", "1"), ("", "1")]
)
def test_a_task_that_sees_one_gpu_uses_that_one(visible: str, local: str) -> None:
    told = rank_environment({**SRUN, "CUDA_VISIBLE_DEVICES": visible})
    assert told["LOCAL_RANK"] == local


def test_on_one_node_the_address_is_this_machine() -> None:
    told = rank_environment({**SRUN, "SLURM_STEP_NUM_NODES": "1"})
    assert told["MASTER_ADDR"] == "127.0.0.1"


def test_a_requeued_job_follows_its_newest_run(tmp_path: Path) -> None:
    for name in (
        "20260101-000000-j17",
        "20260102-000000-j17",
        "20260103-000000-j18",
        "20260104-000000",
        "notes-j17",
    ):
        (tmp_path / name).mkdir()
    assert run_before(tmp_path / "20260105-000000-j17") == tmp_path / "20260102-000000-j17"
    assert run_before(tmp_path / "20260105-000000-j19") is None
    assert run_before(tmp_path / "20260105-000000") is None
    assert run_before(tmp_path / "gone" / "20260105-000000-j17") is None
    assert [restarts({}), restarts({"SLURM_RESTART_COUNT": "2"})] == [0, 2]


TORCHRUN = {"TORCHELASTIC_RUN_ID": "17"}


@pytest.mark.parametrize(
    ("given", "script", "sentence"),
    [
        pytest.param(
            TORCHRUN,
            "#SBATCH --nodes=2 --signal=USR1@120\n",
            "--signal=USR1 will reach torchrun, which dies of this signal at once, and every trace "
            "that is not written yet is lost: ask for --signal=TERM, or give torchrun "
            "--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1",
            id="torchrun dies of USR1",
        ),
        pytest.param(
            {"SBATCH_SIGNAL": "R:SIGUSR2"},
            "#SBATCH --signal=B:USR1\ntorchrun x.py\n",
            None,
            id="srun's ranks get any signal, and the environment overrides the script",
        ),
        pytest.param(
            {**TORCHRUN, "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGUSR1"},
            "#SBATCH --signal USR1@60\n",
            None,
            id="torchrun was told to pass it on",
        ),
        pytest.param(TORCHRUN, "#SBATCH --signal=TERM@120\n", None, id="torchrun passes TERM on"),
        pytest.param(TORCHRUN, "# --signal=USR1@120\n", None, id="a comment asks for nothing"),
        pytest.param(TORCHRUN, "", None, id="nobody asks"),
        pytest.param(
            {},
            "#SBATCH --signal=B:USR1@120\nsrun python train.py\n",
            "--signal=B:USR1 goes to the batch script, which has no trap for this signal and will "
            "die of it; ask for --signal=USR1 without B: to reach the job's steps",
            id="no trap",
        ),
        pytest.param(
            TORCHRUN, "#SBATCH --signal=B:USR1@120\n  trap requeue USR1\n", None, id="a trap"
        ),
    ],
)
def test_a_signal_that_no_rank_will_see_is_named(
    given: dict[str, str], script: str, sentence: str | None
) -> None:
    assert undeliverable_signal(given, script) == sentence


def test_the_batch_script_is_asked_of_scontrol_and_nothing_is_fine_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    scontrol = tmp_path / "scontrol"
    scontrol.write_text('#!/bin/sh\necho "$@"\n')
    scontrol.chmod(0o755)
    assert batch_script({"SLURM_JOB_ID": "17"}) == "write batch_script 17 -\n"
    assert batch_script({}) == ""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert batch_script({"SLURM_JOB_ID": "17"}) == ""


@pytest.mark.parametrize(
    ("given", "args", "world_size", "said"),
    [
        pytest.param(SRUN, Namespace(exit_signal_handler=False), 8, True, id="each by itself"),
        pytest.param(SRUN, Namespace(exit_signal_handler=True), 8, False, id="all together"),
        pytest.param(SRUN, Namespace(), 8, False, id="a Megatron without the flag"),
        pytest.param(SRUN, Namespace(exit_signal_handler=False), 1, False, id="nobody to wait for"),
        pytest.param({}, Namespace(exit_signal_handler=False), 8, False, id="no SLURM"),
    ],
)
def test_ranks_that_a_signal_would_end_one_by_one_are_told_of_the_flag(
    given: dict[str, str], args: Namespace, world_size: int, said: bool
) -> None:
    assert (ranks_end_apart(given, args, world_size) is not None) == said
