# SPDX-License-Identifier: Apache-2.0
"""`srun -n N torch-trace analyze --partials`: the tasks of two nodes share the traces."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from command_line import MAIN
from slurm_cluster import Cluster

SAMPLES = Path(__file__).parents[1] / "data" / "tp2pp2"


def test_tasks_on_two_nodes_share_the_traces_and_the_answer_is_the_direct_one(
    cluster: Cluster, tmp_path: Path
) -> None:
    window = tmp_path / "iter-0000006"
    shutil.copytree(SAMPLES, window)

    def run(*command: str) -> str:
        ended = subprocess.run(
            command, env=cluster.environment, cwd=tmp_path, capture_output=True, text=True
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    # Gains come from the traces themselves: kept analyses have none.
    direct = run(*MAIN, "analyze", window.name, "--json", "--no-gains")
    said = run("srun", "--nodes=2", "--ntasks=4", *MAIN, "analyze", window.name, "--partials")
    shares = sorted(re.findall(r"(Share \d/4 has 1 of 4 traces: analysed 1 trace) in ", said))
    assert shares == [
        f"Share {share}/4 has 1 of 4 traces: analysed 1 trace" for share in range(1, 5)
    ]
    assert said.count(f"When all 4 shares are done, run: torch-trace analyze {window.name}\n") == 4
    for trace in window.glob("*.pt.trace.json.gz"):
        trace.unlink()
    assert run(*MAIN, "analyze", window.name, "--json", "--no-gains") == direct
