# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from click.testing import Result
from command_line import invoked
from trace_builder import GEMM, TraceBuilder


def run(*arguments: str | Path) -> Result:
    return invoked("analyze", *arguments)


def trace(folder: Path, rank: int = 0) -> Path:
    builder = TraceBuilder(rank, 2).step(5, 0, 1000).gpu(GEMM, 10, 500, launch=5)
    return builder.collective(500, 600).write(folder / f"rank-{rank}.json")


def test_text_and_json(tmp_path: Path) -> None:
    trace(tmp_path)
    text = run(tmp_path)
    assert text.exit_code == 0
    assert text.output.startswith("rank 0 of 2; NVIDIA H200; step 5")
    found = run(tmp_path, "--json")
    assert json.loads(found.output)["ranks"][0]["breakdown_ns"]["compute"] == 490


def test_what_was_skipped_is_said_and_makes_the_status_3(tmp_path: Path) -> None:
    trace(tmp_path)
    (tmp_path / "rank-1.json").write_text("no trace")
    found = run(tmp_path)
    assert "rank 0 of 2" in found.output
    assert "Skipped" in found.output
    assert getattr(found.exception, "exit_status", None) == 3


def test_options_reach_the_analysis(tmp_path: Path) -> None:
    trace(tmp_path, 0)
    trace(tmp_path, 1)
    found = json.loads(run(tmp_path, "--json", "--rank", "1", "--step", "5").output)
    assert [rank["rank"] for rank in found["ranks"]] == [1]
    found = json.loads(run(tmp_path, "--json", "--model-flops", "1e9").output)
    assert found["mfu"]["source"] == "--model-flops"


def test_a_wrong_step_is_a_sentence_and_status_2(tmp_path: Path) -> None:
    trace(tmp_path)
    error = run(tmp_path, "--step", "9").exception
    assert getattr(error, "exit_status", None) == 2
    assert str(error) == f"--step 9: {tmp_path / 'rank-0.json'} has no such step; the trace has 5."


def test_neither_pandas_nor_torch_nor_plotly_nor_polars_is_imported(tmp_path: Path) -> None:
    path = trace(tmp_path)
    program = (
        "import sys\n"
        "from megatron import torch_trace\n"
        "assert 'numpy' not in sys.modules\n"
        f"torch_trace.analyze({str(path)!r})\n"
        "heavy = {'pandas', 'torch', 'plotly', 'polars'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


def test_a_condition_that_holds_is_the_exit_status_of_the_program_itself() -> None:
    samples = Path(__file__).parents[2] / "data" / "analysis"
    command = [sys.executable, "-m", "megatron.torch_trace", "compare"]
    command += [str(samples / "dp4"), str(samples / "dp4-rank2-slow"), "--fail-if"]
    for condition, status in (("iteration > +5%", 1), ("iteration > +500%", 0)):
        ended = subprocess.run([*command, condition], capture_output=True, timeout=300)
        assert ended.returncode == status
