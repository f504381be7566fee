# SPDX-License-Identifier: Apache-2.0
"""What SLURM tells a rank: its number, which run it follows, what it will signal before the end.

Megatron reads RANK, WORLD_SIZE, LOCAL_RANK and the rendezvous' address from the environment. Under
torchrun they are there, and what is there stays; srun with a task for each rank leaves them to us.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megatron.torch_trace.format.file_names import RunName

_PORTS = 20_000
_PORT_RANGE = 10_000
_SCONTROL_SECONDS = 10.0
_HANDLED = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
"""What torchrun passes on unless told otherwise; of any other signal it dies."""
_SIGNAL_OPTION = re.compile(
    r"^#SBATCH\b.*?--signal[= ]\s*(?P<to>(?:[RB]+:)?)(?P<name>\w+)(?:@\d+)?", re.MULTILINE
)


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
        "LOCAL_RANK": str(_local_rank(given)),
        "MASTER_ADDR": _first_host(given),
        # Of the job, so that all ranks choose the same and two jobs rarely do.
        "MASTER_PORT": str(_PORTS + int(given.get("SLURM_JOB_ID", "0")) % _PORT_RANGE),
    }
    return {name: value for name, value in wanted.items() if name not in given}


def restarts(given: Mapping[str, str]) -> int:
    """How often SLURM has requeued this job."""
    return int(given.get("SLURM_RESTART_COUNT") or 0)


def run_before(run: Path) -> Path | None:
    """The newest other run of the same job beside a run; None if there is none to be seen."""
    me = RunName.parse(run.name)
    if me is None or me.job is None:
        return None
    try:
        beside = [path for path in run.parent.iterdir() if path != run]
    except OSError:
        return None
    names = ((RunName.parse(path.name), path) for path in beside)
    return max((path for name, path in names if name and name.job == me.job), default=None)


def undeliverable_signal(given: Mapping[str, str], batch_script: str) -> str | None:
    """Why the signal that the job asks for will not reach the ranks, in one sentence.

    Args:
        given: the environment of a rank.
        batch_script: text of the job's script, empty where it is unknown.

    Returns:
        None where it will, where none is asked for, and where only sbatch's command line tells.
    """
    asked = _SIGNAL_OPTION.search(f"#SBATCH --signal={given.get('SBATCH_SIGNAL', '')}")
    asked = asked or _SIGNAL_OPTION.search(batch_script)
    if asked is None or asked["name"].isdigit():
        return None
    name = "SIG" + asked["name"].upper().removeprefix("SIG")
    if "B" in asked["to"]:
        if re.search(r"^\s*trap\b", batch_script, re.MULTILINE) or not batch_script:
            return None
        return (
            f"--signal=B:{asked['name']} goes to the batch script, which has no trap for this "
            f"signal and will die of it; ask for --signal={asked['name']} without B: to reach the "
            f"job's steps"
        )
    handled = given.get("TORCHELASTIC_SIGNALS_TO_HANDLE", _HANDLED)
    if "TORCHELASTIC_RUN_ID" not in given or name in handled.split(","):
        return None
    return (
        f"--signal={asked['name']} will reach torchrun, which dies of this signal at once, and "
        f"every trace that is not written yet is lost: ask for --signal=TERM, or give torchrun "
        f"--signals-to-handle={handled},{name}"
    )


def ranks_end_apart(given: Mapping[str, str], args: Any, world_size: int) -> str | None:
    """What a signal costs where each rank ends by itself, in one sentence; None where none does.

    Args:
        given: the environment.
        args: Megatron's arguments.
        world_size: number of ranks.
    """
    handles = getattr(args, "exit_signal_handler", True)  # what lacks the flag cannot be told of it
    if handles or world_size == 1 or "SLURM_JOB_ID" not in given:
        return None
    return (
        "without --exit-signal-handler a signal ends each rank where it stands: ranks that are not "
        "profiled end at once, and a profiled rank that waits for them may save nothing, or has "
        "only SLURM's KillWait to save its trace; add --exit-signal-handler, and all ranks end "
        "together after the iteration"
    )


def batch_script(given: Mapping[str, str]) -> str:
    """Text of this job's batch script; empty outside SLURM and where scontrol does not tell."""
    job = given.get("SLURM_JOB_ID")
    if job is None:
        return ""
    try:
        return subprocess.run(
            ["scontrol", "write", "batch_script", job, "-"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SCONTROL_SECONDS,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):  # a container without it, a busy controller
        return ""


def _local_rank(given: Mapping[str, str]) -> int:
    local = int(given.get("SLURM_LOCALID", "0"))
    visible = [gpu for gpu in given.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    # With --gpus-per-task each task sees its own GPU only, and that is number 0.
    return local % len(visible) if visible else local


def _first_host(given: Mapping[str, str]) -> str:
    """`rack[1-2]n[07-09,12],b3` -> `rack1n07`; without scontrol, which containers lack."""
    if given.get("SLURM_STEP_NUM_NODES", "1") == "1":
        return "127.0.0.1"
    hosts = re.sub(r"\[(\w+)[^\]]*\]", r"\1", given.get("SLURM_STEP_NODELIST", ""))
    return hosts.partition(",")[0]
