# SPDX-License-Identifier: Apache-2.0
"""`whatif --save` writes the simulated iteration as traces, and the analysis of these agrees."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from trace_builder import TraceBuilder
from trace_builder.events import arrow_end

from megatron import torch_trace
from megatron.torch_trace.rewrite import simulated_trace

DATA = Path(__file__).parents[2] / "data"
SLOW = DATA / "analysis" / "dp4-rank2-slow"

pytestmark = pytest.mark.slow  # half a minute: whole windows are written and analysed again


def events(path: Path) -> list[dict[str, Any]]:
    text = path.read_bytes()
    if path.suffix == ".gz":
        text = gzip.decompress(text)
    found: list[dict[str, Any]] = json.loads(text)["traceEvents"]
    return found


def without_times(path: Path) -> Counter[str]:
    kept = ({k: v for k, v in one.items() if k not in ("ts", "dur")} for one in events(path))
    return Counter(json.dumps(one, sort_keys=True) for one in kept)


@pytest.mark.parametrize(
    ("sample", "change"),
    [
        (SLOW, "--rank 2=median"),
        (DATA / "tp2pp2", "--cpu-operators 0.5"),
        (DATA / "pp2-recompute-spans", "--launch 0"),
        (DATA / "dp2-spans", "--comm dp*3"),
    ],
)
def test_saved_traces_are_as_long_as_predicted_and_hold_the_same_events(
    sample: Path, change: str, tmp_path: Path
) -> None:
    answer = torch_trace.whatif(sample, change, with_times=True)
    files = simulated_trace.write(answer.times, tmp_path / "simulated", answer.changes)
    found = torch_trace.analyze(tmp_path / "simulated").summary.iteration_ns
    assert found == pytest.approx(answer.simulated_ns, abs=1)
    assert answer.simulated_ns != answer.recorded_ns
    assert [file.name for file in files] == sorted(one.name for one in sample.glob("*.json.gz"))
    for file in files:
        assert without_times(file) == without_times(sample / file.name)


@pytest.mark.parametrize("sample", ["tp2pp2", "dp2-spans"])
def test_calls_that_wait_no_more_are_in_no_saved_trace(sample: str, tmp_path: Path) -> None:
    """A call that returns before the work it waits for is done looks like another clock."""
    answer = torch_trace.whatif(DATA / sample, "--sync none", with_times=True)
    files = simulated_trace.write(answer.times, tmp_path / "simulated", answer.changes)
    found = torch_trace.analyze(tmp_path / "simulated")
    assert found.summary.iteration_ns == pytest.approx(answer.simulated_ns, abs=1)
    assert "gpu_on_another_clock" not in {one.code for one in found.findings}
    for file in files:
        gone = without_times(DATA / sample / file.name) - without_times(file)
        events = [json.loads(text) for text in gone]
        assert not without_times(file) - without_times(DATA / sample / file.name)
        waits = {one["args"]["correlation"] for one in events if "args" in one}
        assert waits
        for one in events:
            if one["cat"] == "ac2g":
                assert one["id"] in waits
            else:
                assert one["name"].endswith("Synchronize")


def test_a_kernel_ends_sooner_and_arrows_follow(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 100_000)
    trace.gpu("gemm", 20_000, 60_000, launch=10_000)
    trace.gpu("add", 60_000, 70_000, launch=12_000)
    for number, at in ((1, 20_000), (2, 60_000)):
        trace.add(arrow_end("f", number, at, pid=0, tid=7))
    recorded = trace.write(tmp_path / "rank-0.json")
    saved = tmp_path / "faster.json"
    assert run("whatif", recorded, "--kernel", "gemm*0.5", "--save", saved).returncode == 0
    work = {one["name"]: one for one in events(saved) if one.get("cat") == "kernel"}
    assert {name: (one["ts"], one["dur"]) for name, one in work.items()} == {
        "gemm": (20.0, 20.0),
        "add": (40.0, 10.0),
    }
    assert sorted(one["ts"] for one in events(saved) if one.get("ph") == "f") == [20.0, 40.0]
    step = next(one for one in events(saved) if one["name"] == "ProfilerStep#1")
    assert (step["ts"], step["dur"]) == (0.0, 100.0)


def test_several_ranks_go_into_one_file_that_tells_what_was_simulated(tmp_path: Path) -> None:
    saved = tmp_path / "all.json.gz"
    ended = run("whatif", SLOW, "--rank", "2=median", "--save", saved)
    assert ended.returncode == 0
    assert f"{saved}: 1 simulated trace" in ended.stderr.decode()
    own = json.loads(gzip.decompress(saved.read_bytes()))["torch_profile"]
    assert own["simulated"] == {"changes": ["--rank 2=median"]}
    assert [one["rank"] for one in own["merged"]["ranks"]] == [0, 1, 2, 3]
    assert list(tmp_path.iterdir()) == [saved]


def test_nothing_is_overwritten_and_names_say_what_they_are(tmp_path: Path) -> None:
    there = tmp_path / "there.json"
    there.write_text("mine")
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").touch()
    sentences = {
        there: f"--save {there}: exists already; name a new file or folder.",
        full: f"--save {full}: exists already; name a new file or folder.",
        tmp_path / "a.gz": f"--save {tmp_path / 'a.gz'}: is no name of a trace; a file ends in "
        ".json, .json.gz or .json.zst, and a folder takes a trace for each rank.",
        tmp_path / "no" / "a": f"--save {tmp_path / 'no' / 'a'}: there is no folder "
        f"{tmp_path / 'no'}; create it first.",
    }
    for path, sentence in sentences.items():
        ended = run("whatif", SLOW, "--rank", "2=median", "--save", path)
        assert (ended.returncode, ended.stderr.decode()) == (2, f"torch-trace: {sentence}\n")
    assert there.read_text() == "mine"


def test_the_graph_of_spans_has_nothing_to_save(tmp_path: Path) -> None:
    sample = DATA / "pp4-interleaved-spans"
    ended = run("whatif", sample, "--micro-batches", "16", "--save", tmp_path / "new")
    assert ended.returncode == 2
    assert "--micro-batches 16: is simulated on the graph of spans" in ended.stderr.decode()
    assert not (tmp_path / "new").exists()
