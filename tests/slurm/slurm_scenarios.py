# SPDX-License-Identifier: Apache-2.0
"""What can befall a job, done to real ones: 2 nodes x 2 ranks that train a tiny GPT over gloo.

torchrun and ranks are forks of a Python that has imported torch (tests/warm_python.py) inside the
namespaces and the control group of their step. What SLURM starts, signals and waits for is the
small program that asks for a fork, passes signals on and ends as the fork does. Jobs that are
cancelled start as users' do, with one rank on each node.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from slurm_cluster import CPUS, Cluster, Job, until

ROOT = Path(__file__).parents[2]
STYLES = {"torchrun": "pretrain_gpt_slurm.sbatch", "srun": "pretrain_gpt_srun.sbatch"}
TINY = {
    "NUM_LAYERS": "2",
    "HIDDEN_SIZE": "32",
    "NUM_HEADS": "2",
    "SEQ_LENGTH": "32",
    "VOCAB_SIZE": "255",
    "GLOBAL_BATCH_SIZE": "2",
    "TP": "2",
    "GPUS_PER_NODE": "0",
    "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'startup'}",
    "PYTHONWARNINGS": "ignore",
    "TORCHDYNAMO_DISABLE": "1",  # the CPU compiles nothing; this spares its import
    "TORCH_COMPILE_DISABLE": "1",
}
# The second window lasts until after whatever befalls a job, which so finds it open.
# Cycles, which the script asks for, are set back to their defaults.
_WINDOWS = ("--torch-profile-skip-first", "1", "--torch-profile-active", "1")
_WINDOWS += ("--torch-profile-warmup", "0", "--torch-profile-iterations", "2-6")
_STARTED_SECONDS = 900.0
_AT_A_TIME = 3
_PREEMPTION = Lock()
"""Whoever takes nodes takes them from whom SLURM chooses: so one victim at a time."""


@dataclass(frozen=True)
class Outcome:
    """What became of a job.

    Attributes:
        job: it has ended.
        state: SLURM's word for how.
        seconds: from what befell it to its end.
        scratch: its scratch folder, the same path on both nodes.
        left_behind: processes that outlived it.
    """

    job: Job
    state: str
    seconds: float
    scratch: Path
    left_behind: list[int]


class Scenarios:
    """Jobs that run beside the tests.

    Args:
        cluster: where.
        folder: for their output.
        warm_python: a `python` that starts at once.
    """

    def __init__(self, cluster: Cluster, folder: Path, warm_python: str) -> None:
        self._cluster = cluster
        self._warm_python = warm_python
        self._folder = folder
        self._pool = ThreadPoolExecutor(_AT_A_TIME)
        self._running: dict[str, Future[Outcome]] = {}

    def begin(self, names: Iterable[str]) -> None:
        """Start these scenarios, `what-style`, the longest first."""
        for name in sorted(names, key=lambda name: list(_SCENARIOS).index(name.split("-")[0])):
            self._running[name] = self._pool.submit(self._run, name)

    def outcome(self, name: str) -> Outcome:
        """What became of a scenario's job; waits for it."""
        return self._running[name].result()

    def cancel(self) -> None:
        """Begin nothing more and wait for what runs."""
        self._pool.shutdown(cancel_futures=True)

    def _run(self, name: str) -> Outcome:
        what, style = name.split("-")
        folder = self._folder / name
        scratch = self._folder / f"{name}-scratch"
        submit = _Submit(self._cluster, style, folder, scratch, self._warm_python)
        job, seconds, state = _SCENARIOS[what](submit)
        return Outcome(job, state, seconds, scratch, job.processes())


@dataclass(frozen=True)
class _Submit:
    cluster: Cluster
    style: str
    folder: Path
    scratch: Path
    warm_python: str

    def __call__(
        self, *options: str, cpus: int = 4, ranks: int = 2, cold: bool = False, **settings: str
    ) -> Job:
        """CPUs and ranks are those of a node."""
        shape = {
            "torchrun": [f"--cpus-per-task={cpus}"],
            "srun": [f"--ntasks-per-node={ranks}", f"--cpus-per-task={cpus // ranks}"],
        }[self.style]
        python = sys.executable if cold else self.warm_python
        given = {
            "SCRIPT": str(Path(__file__).with_name("slow_pretrain_gpt.py")),
            "SCRATCH": str(self.scratch),
            "PYTHON": python,
            "PYTHON_EXEC": python,  # what torchrun starts ranks with
            "RANKS_PER_NODE": str(ranks),
            "SECONDS_PER_STEP": "1.2",
            "TRAIN_ITERS": "1000",
        }
        last = min(100, int(settings.get("TRAIN_ITERS", "1000")))
        return self.cluster.submit(
            self.folder,
            ROOT / "scripts" / STYLES[self.style],
            *_WINDOWS,
            f"7-{last}",
            options=["--gpus-per-node=0", "--time=30", *shape, *options],
            settings={**TINY, **given, **settings},
        )


_Result = tuple[Job, float, str]


def _ended(job: Job, began: float) -> _Result:
    state = job.wait()
    return job, time.monotonic() - began, state


def _has_traces(job: Job) -> bool:
    """Whether both chosen ranks have finished one, or never will."""
    ranks = {Path(name).name for name in job.traces()}
    return len(ranks) >= 2 or job.field("JobState") == "FAILED"


def _records_again(job: Job) -> bool:
    """Whether iterations of the second window have been recorded, or never will be."""
    numbers = map(int, re.findall(r"iteration +(\d+)/", job.log))
    return _has_traces(job) and (max(numbers, default=0) >= 9 or job.field("JobState") == "FAILED")


def _cancelled(submit: _Submit) -> _Result:
    """scancel, when a trace of each chosen rank is written and the next window is open."""
    job = submit(PROFILE_RANKS="all", ranks=1, cold=True)
    until(lambda: _records_again(job), "second window", _STARTED_SECONDS)
    began = time.monotonic()
    job.cluster.run("scancel", job.number)
    return _ended(job, began)


def _limited(submit: _Submit) -> _Result:
    """The limit comes near: SLURM's own TERM, so long before it as the job asks for."""
    job = submit("--signal=TERM@90", PROFILE_RANKS="0,2")
    until(lambda: _records_again(job), "second window", _STARTED_SECONDS)
    minutes = _minutes(job.field("RunTime")) + 2
    job.cluster.run("scontrol", "update", f"JobId={job.number}", f"TimeLimit={minutes}")
    return _ended(job, time.monotonic())


def _minutes(run_time: str) -> int:
    hours, minutes, _ = map(int, run_time.split(":"))
    return 60 * hours + minutes


def _preempted(submit: _Submit) -> _Result:
    """A job of higher rank takes the nodes; this one is requeued, trains again, to the end."""
    with _PREEMPTION:
        job, seconds = _requeued(submit)
        # What the former run's steps still tell would be taken for news of the next run.
        until(
            lambda: (
                job.field("JobState") == "PENDING" and not job.processes() and not job.has_steps()
            ),
            "queue",
        )
        time.sleep(2)
        # SLURM would wait two minutes.
        job.cluster.run("scontrol", "update", f"JobId={job.number}", "StartTime=now")
        return job, seconds, job.wait(_STARTED_SECONDS)


def _requeued(submit: _Submit) -> tuple[Job, float]:
    job = submit(
        "--partition=low",
        "--requeue",
        cpus=CPUS // 2 + 10,
        TRAIN_ITERS="21",
        STAYS_AFTER="12",
        PROFILE_RANKS={"torchrun": "tp=0", "srun": "per-node"}[submit.style],
    )
    until(lambda: _records_again(job), "second window", _STARTED_SECONDS)
    began = time.monotonic()
    # So many that they fit only once this job has gone.
    take = [
        f"--cpus-per-task={CPUS // 2 + 10}",
        "--nodes=2",
        "--partition=high",
        "--output=/dev/null",
    ]
    job.cluster.run("sbatch", *take, "--wrap=true")
    until(lambda: job.field("Restarts") == "1", "requeue")
    return job, time.monotonic() - began


def _killed(submit: _Submit) -> _Result:
    """A rank that is not profiled dies, as of a machine check or the out-of-memory killer."""
    job = submit(PROFILE_RANKS="0,2")
    until(lambda: _has_traces(job), "traces", _STARTED_SECONDS)
    return _kill_rank(job, "3")


def _unwritten(submit: _Submit) -> _Result:
    """A profiled rank dies while traces are text on the nodes and not compressed yet."""
    job = submit(PROFILE_RANKS="0,2", SECONDS_PER_COMPRESSION="60")
    until(lambda: len(list(job.folder.glob("*.text"))) >= 2, "texts", _STARTED_SECONDS)
    return _kill_rank(job, "2")


def _kill_rank(job: Job, rank: str) -> _Result:
    variable = {"torchrun": "RANK", "srun": "SLURM_PROCID"}
    style = next(style for style in STYLES if style in str(job.folder))
    began = time.monotonic()
    for number in job.processes(**{variable[style]: rank}):
        os.kill(number, signal.SIGKILL)
    return _ended(job, began)


_SCENARIOS: dict[str, Callable[[_Submit], _Result]] = {
    "preempted": _preempted,
    "limited": _limited,
    "unwritten": _unwritten,
    "killed": _killed,
    "cancelled": _cancelled,
}
