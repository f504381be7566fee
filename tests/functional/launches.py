# SPDX-License-Identifier: Apache-2.0
"""Real Megatron wheels, real torchrun over gloo: what the functional tests stand on.

What several tests read is launched in trainings.py.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import wheels
from trace_builder import read
from wheels import ROOT, WHEELS

STARTUP = ROOT / "tests" / "startup"

MODEL = (
    "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 "
    "--max-position-embeddings 32 --micro-batch-size 1 --lr 1e-3 --mock-data "
    "--tokenizer-type NullTokenizer --vocab-size 255 --log-interval 1 "
    "--eval-interval 1000 --eval-iters 0 --attention-dropout 0.1 --hidden-dropout 0.1"
)


@dataclass
class Run:
    """A launch that has ended."""

    status: int
    printed: str

    @property
    def output(self) -> str:
        """All that its processes printed."""
        if self not in read_outputs:
            read_outputs.append(self)
        return self.printed

    @property
    def losses(self) -> dict[int, str]:
        """Iteration -> the digits of loss and gradient norm as Megatron prints them."""
        found = re.findall(r"iteration +(\d+)/.*?lm loss: (\S+) .*?grad norm: (\S+)", self.output)
        return {int(iteration): f"{loss} {norm}" for iteration, loss, norm in found}

    @property
    def said(self) -> list[str]:
        """Our lines, also where another process had just begun one."""
        return re.findall(r"\[torch-profile [a-z-]+\] (.*)", self.output)

    @property
    def errors(self) -> list[str]:
        """Our sentences of refusal, on whichever rank."""
        return re.findall(r"torch-profile: error: (.*)", self.output)


read_outputs: list[Run] = []
"""Whose output the test that runs has read: shown if that test fails."""

Launch = Callable[..., Run]


@pytest.fixture(scope="session")
def wheel_path() -> Callable[[str], str]:
    """Folder of a Megatron wheel, installed beside the others without its dependencies."""
    return lambda version: str(wheels.megatron(version))


@pytest.fixture(scope="session")
def launch(wheel_path: Callable[[str], str], warm_python: str) -> Launch:
    """Run a script on processes of a Megatron version, one without torchrun; its output.

    `cold` starts each process as users do; it imports torch for itself, which takes seconds.
    """

    def run(
        arguments: str,
        *,
        version: str = WHEELS[-1],
        processes: int = 1,
        script: str = "pretrain_gpt.py",
        path: str | None = None,
        cwd: Path = ROOT,
        variables: Mapping[str, str] | None = None,
        cold: bool = False,
    ) -> Run:
        python = sys.executable if cold else warm_python
        environment = {
            **os.environ,
            "WANDB_MODE": "offline",
            **(variables or {}),
            "PYTHONPATH": f"{path or f'{ROOT}:{wheel_path(version)}'}:{STARTUP}",
            # What torchrun starts ranks with.
            "PYTHON_EXEC": python,
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore",
        }
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_JOB_ID"):
            environment.pop(name, None)
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        if processes == 1:
            torchrun = []
        ended = subprocess.run(
            [python, *torchrun, *script.split(), *arguments.split()],
            env=environment,
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
        )
        return Run(ended.returncode, ended.stdout)

    return run


def trace_files(folder: Path) -> list[str]:
    """Traces of the only run below a folder: `iter-0000003/rank-0.pt.trace.json.gz`."""
    (run,) = (path.parent for path in folder.rglob("run.json"))
    return sorted(str(path.relative_to(run)) for path in run.rglob("*.pt.trace.json*"))


def read_trace(folder: Path, name: str) -> dict[str, Any]:
    """A trace of the only run below a folder, as strict JSON."""
    (path,) = folder.rglob(name)
    return read(path)


def steps(trace: dict[str, Any]) -> list[str]:
    """The trace's marks of iterations, in order."""
    marks = [e for e in trace["traceEvents"] if str(e.get("name", "")).startswith("ProfilerStep")]
    return [e["name"] for e in sorted(marks, key=lambda e: float(e["ts"]))]
