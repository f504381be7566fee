# SPDX-License-Identifier: Apache-2.0
"""Windows that somebody asks for while two gloo ranks train."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from toy_runs import ENVIRONMENT, ROOT, SECONDS, python, until
from trace_builder import read

TOY = str(Path(__file__).with_name("toy_requests.py"))
LAUNCH = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", TOY]


def start(folder: Path, *triggers: str) -> subprocess.Popen[str]:
    folder.mkdir()
    (folder / "run.json").write_text('{"plan": {"ranks": [0], "windows": []}}')
    return subprocess.Popen(
        [python(), *LAUNCH, str(folder), *triggers],
        env={**ENVIRONMENT, "PYTHON_EXEC": python()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def losses(output: str) -> list[str]:
    return sorted(re.findall(r"rank \d step \d+ \S+", output))


def command(*words: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "megatron.torch_trace", *words],
        env=ENVIRONMENT,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=SECONDS,
    )
    return ended.stdout


def test_a_request_in_mid_run_records_the_same_iterations_on_both_ranks_and_the_same_losses(
    tmp_path: Path,
) -> None:
    plain = start(tmp_path / "plain")
    expected, _ = plain.communicate(timeout=SECONDS)
    assert plain.returncode == 0, expected

    run = tmp_path / "asked"
    training = start(run, "file", "signal")
    seen = until(training, "rank 0 step 40 ")
    words = ["--iterations", "2", "--ranks", "all", "--spans", "phases"]
    assert "Accepted: records iterations" in command("trigger", str(run), *words)
    with training:
        assert training.stdout
        output = seen + training.stdout.read()  # communicate() forgets what was read beyond a line
    assert training.returncode == 0, output
    assert losses(output) == losses(expected)

    (request,) = json.loads(command("status", str(run), "--json"))["requests"]
    answer = request["answer"]
    assert (answer["state"], answer["recorded_ranks"]) == ("done", [0, 1])
    for rank in (0, 1):
        events = read(run / answer["folder"] / f"rank-{rank}.pt.trace.json.gz")["traceEvents"]
        steps = {e["name"] for e in events if str(e.get("name")).startswith("ProfilerStep#")}
        assert steps == {f"ProfilerStep#{n}" for n in (answer["first"], answer["last"])}
