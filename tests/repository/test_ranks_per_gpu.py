# SPDX-License-Identifier: Apache-2.0
"""Several ranks on one GPU, for benchmarks: what the module that does it takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2", (0, "1\n", "")),
        ("two", (2, "", "RANKS_PER_GPU=two: must be a whole number from 1 on.\n")),
        ("0", (2, "", "RANKS_PER_GPU=0: must be a whole number from 1 on.\n")),
    ],
)
def test_several_ranks_share_a_gpu_or_the_rank_says_why_not(
    value: str, expected: tuple[int, str, str]
) -> None:
    folder = ROOT / "benchmarks" / "ranks_per_gpu"
    told = {"RANKS_PER_GPU": value, "RANK": "3", "LOCAL_RANK": "3", "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", "import os; print(os.environ['LOCAL_RANK'])"]
    environment = {name: text for name, text in os.environ.items() if name != "NCCL_HOSTID"} | told
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stdout, ended.stderr) == expected
