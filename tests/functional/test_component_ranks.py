# SPDX-License-Identifier: Apache-2.0
"""A component that is split over two ranks of torchrun: both measure, both record, one answers."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("megatron.core", reason="components of Megatron need megatron-core")
ROOT = Path(__file__).parents[2]
OVERRIDES = (
    "parallel={tensor: 2}",
    "sizes={sequence: 8, hidden: 16, ffn: 16}",
    "direction=forward-backward",
    "measure=3",
    "ranks=[0, 1]",
    "roofline=false",
)


def test_both_ranks_of_a_tensor_parallel_mlp_are_measured_and_recorded(
    warm_python: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [
            *(warm_python, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", "-m", "megatron.torch_profile.component", "mlp", "--json"),
            *(word for one in OVERRIDES for word in ("--override", one)),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHON_EXEC": warm_python},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout)
    (variant,) = answer["variants"]
    assert [one["rank"] for one in variant["ranks"]] == [0, 1]
    assert variant["median_us"] == max(one["median_us"] for one in variant["ranks"])
    window = Path(answer["run_folder"]) / variant["window"]
    names = sorted(str(path.relative_to(window)) for path in window.rglob("*") if path.is_file())
    assert names == [
        "artifacts/rank-0.summary.json",
        "artifacts/rank-1.summary.json",
        "rank-0.pt.trace.json.gz",
        "rank-1.pt.trace.json.gz",
    ]
