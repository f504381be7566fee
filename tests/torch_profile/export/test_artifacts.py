# SPDX-License-Identifier: Apache-2.0
"""The table of operators and the stacks beside a trace: what torch itself says, from the trace."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from exports import WITHOUT_THREAD, export_to, hand_over
from exports import no_process_left as no_process_left
from gates import MINUTES
from written_files import files_below

from megatron.torch_profile.export import artifacts, follow_ups
from megatron.torch_profile.export.artifacts import KEY_AVERAGES, STACKS
from megatron.torch_profile.export.background import Exporter
from megatron.torch_profile.export.endings import Ending
from megatron.torch_profile.export.writers import Program
from megatron.torch_trace.analysis.host.call_tree import call_tree
from megatron.torch_trace.analysis.host.key_averages import key_averages
from megatron.torch_trace.system.memory import HostMemory

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU"),
    ),
]
TABLE = "iter-0000003-0000004/artifacts/rank-0.key_averages.txt"
FLAMES = "iter-0000003-0000004/artifacts/rank-0.stacks.txt"
TRACE = "iter-0000003-0000004/rank-0.pt.trace.json.gz"


def train(steps: int, device: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(steps):
        with torch.profiler.record_function(f"ProfilerStep#{step + 1}"):
            with torch.profiler.record_function("forward"):
                loss = model(torch.ones(8, 16, device=device)).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def profiled(path: Path, device: str = "cpu", **options: Any) -> Any:
    """A profiler of torch's own, whose events can be asked for, and its trace."""
    train(1, device)
    activities = {torch.profiler.ProfilerActivity.CPU}
    if device == "cuda":
        activities.add(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(
        activities=activities,
        experimental_config=torch._C._profiler._ExperimentalConfig(verbose=True),
        **options,
    ) as profiler:
        train(3, device)
    profiler.export_chrome_trace(str(path))
    return profiler


@pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "options",
    [{}, {"with_stack": True}, {"profile_memory": True}, {"record_shapes": True}],
    ids=str,
)
def test_the_sums_are_torchs_own(tmp_path: Path, options: dict[str, Any], device: str) -> None:
    profiler = profiled(tmp_path / "trace.json", device, **options)
    ours = {
        (row.name, row.on_gpu, row.annotation): row
        for row in key_averages(call_tree(_only(tmp_path)))
    }
    theirs = {
        (row.key, "CPU" not in str(row.device_type), bool(row.is_user_annotation)): row
        for row in profiler.key_averages()
        # Before torch 2.14, Python functions are rows too.
        if not _is_python(row)
    }
    in_functions = any(_is_python(row) for row in profiler.key_averages())
    assert set(ours) == {key for key in theirs if not key[0].startswith(("<built-in", "nn.Mod"))}
    for key, row in ours.items():
        other = theirs[key]
        assert (row.calls, row.cpu_bytes, row.self_cpu_bytes) == (
            other.count,
            other.cpu_memory_usage,
            other.self_cpu_memory_usage,
        )
        # torch adds microseconds as floats.
        assert row.cpu_ns / 1000 == pytest.approx(other.cpu_time_total, abs=0.01)
        if not in_functions:  # there, what a function calls is not inside of what calls it
            assert row.self_cpu_ns / 1000 == pytest.approx(other.self_cpu_time_total, abs=0.01)
        if key[0].startswith("cuda") and not row.on_gpu:
            continue  # torch mixes up the numbers of calls outside of operators with operators'
        assert row.gpu_ns / 1000 == pytest.approx(other.device_time_total, abs=0.01)
        assert row.self_gpu_ns / 1000 == pytest.approx(other.self_device_time_total, abs=0.01)
        assert row.self_gpu_bytes == other.self_device_memory_usage


@pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning")
def test_the_table_is_torchs_own_line_for_line(tmp_path: Path) -> None:
    profiler = profiled(tmp_path / "trace.json")
    artifacts.write(_only(tmp_path), {KEY_AVERAGES: tmp_path / "artifacts" / "table"})
    theirs = profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=200)
    ours = (tmp_path / "artifacts" / "table").read_text()
    # Rows of one time may stand in either order.
    same_lines(sorted(ours.splitlines()), sorted(line.rstrip() for line in theirs.splitlines()))
    same_lines(ours.splitlines()[:4], [line.rstrip() for line in theirs.splitlines()[:4]])


def same_lines(ours: list[str], theirs: list[str]) -> None:
    """The same to the letter, and numbers to their last digit: torch adds up floats."""
    number = re.compile(r"\d+\.(\d+)(?=us|ms|s|%)")
    for one, other in zip(ours, theirs, strict=True):
        assert number.sub("#", one) == number.sub("#", other)
        for mine, torchs in zip(number.finditer(one), number.finditer(other), strict=True):
            last = 10.0 ** -len(mine[1])
            assert float(mine[0]) == pytest.approx(float(torchs[0]), abs=1.1 * last)


@pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning")
def test_the_stacks_are_torchs_own(tmp_path: Path) -> None:
    profiler = profiled(tmp_path / "trace.json", with_stack=True)
    profiler.export_stacks(str(tmp_path / "theirs"), "self_cpu_time_total")
    artifacts.write(_only(tmp_path), {STACKS: tmp_path / "ours"})
    ours, theirs = _sums(tmp_path / "ours"), _sums(tmp_path / "theirs")
    # torch counts an annotation at the call that opens it, and cuts each time to microseconds.
    missing = set(theirs) - set(ours)
    assert all("_record_function_enter" in stack.rsplit(";", 1)[-1] for stack in missing)
    assert all(ours[stack] >= theirs[stack] for stack in set(theirs) - missing)
    events = [
        event
        for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        if event.get("cat") in ("cpu_op", "python_function", "user_annotation")
    ]
    lasts = max(e["ts"] + e["dur"] for e in events) - min(e["ts"] for e in events)
    # Threads that other tests have left have functions, too, and a slice that ends a moment after
    # the call it began in counts that moment in both: on a busy machine it may be a long one.
    threads = len({event["tid"] for event in events})
    assert sum(ours.values()) <= 1.05 * (threads * lasts + _overhang(events))


@pytest.mark.parametrize("ending", WITHOUT_THREAD, ids=str)
def test_they_are_written_when_the_trace_is_there(tmp_path: Path, ending: Ending) -> None:
    exporter = Exporter(MINUTES)
    hand_over(exporter, export_to(tmp_path, key_averages=True), ending)
    exporter.wait()
    assert exporter.at_work, "whoever measures iterations knows"
    exporter._follow_ups.wait()
    assert files_below(tmp_path) == [TABLE, TRACE]
    assert "aten::ones" in (tmp_path / TABLE).read_text()


@pytest.mark.parametrize(
    ("flags", "left", "why"),
    [
        ({"key_averages": True, "stacks": True}, [TABLE, TRACE], "the trace holds no Python"),
        ({"stacks": True}, [TRACE], "the trace holds no Python functions, so there are no stacks"),
    ],
    ids=str,
)
def test_artifacts_that_fail_cost_only_themselves(
    tmp_path: Path, said: list[str], flags: dict[str, bool], left: list[str], why: str
) -> None:
    exporter = Exporter(MINUTES)
    hand_over(exporter, export_to(tmp_path, **flags))
    exporter.wait()
    exporter._follow_ups.wait()
    assert files_below(tmp_path) == left
    assert said[-1].startswith(f"rank 0 could not write the artifacts of iterations 3-4: {why}")


def test_nothing_is_overwritten(tmp_path: Path, said: list[str]) -> None:
    (tmp_path / TABLE).parent.mkdir(parents=True)
    (tmp_path / TABLE).write_text("mine")
    exporter = Exporter(MINUTES)
    hand_over(exporter, export_to(tmp_path, key_averages=True))
    exporter.wait()
    exporter._follow_ups.wait()
    assert (tmp_path / TABLE).read_text() == "mine"
    assert said[-1].endswith("rank-0.key_averages.txt exists, and stays as it is")


def test_the_end_of_training_does_not_wait_for_ever(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_ups, "Program", lambda _: Program(["sleep", "900"]))
    exporter = Exporter(MINUTES)
    exporter._follow_ups = follow_ups.FollowUps(exit_timeout=0.2)
    hand_over(exporter, export_to(tmp_path, key_averages=True))
    exporter.wait()
    exporter._follow_ups.wait()
    assert files_below(tmp_path) == [TRACE]
    assert said[-2:] == [
        "rank 0 waits up to 200 ms for the artifacts of its trace of iterations 3-4",
        "rank 0 could not write the artifacts of iterations 3-4: training ended before they were "
        "written",
    ]


def test_without_memory_there_are_none(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_ups, "host_memory", lambda: HostMemory(10**9, 9 * 10**8))
    exporter = Exporter(MINUTES)
    hand_over(exporter, export_to(tmp_path, key_averages=True))
    exporter.wait()
    assert files_below(tmp_path) == [TRACE]
    assert said[-1].endswith("artifacts of iterations 3-4: the host has too little free memory")


def _is_python(row: Any) -> bool:
    return getattr(row, "is_python_function", False) or bool(re.search(r"\(\d+\): ", row.key))


def _overhang(events: list[dict[str, Any]]) -> float:
    """By how much slices end after the ones that they began in, in us."""
    found, open_ends = 0.0, {}
    for one in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        ends = [end for end in open_ends.get(one["tid"], []) if end > one["ts"]]
        found += sum(max(0.0, one["ts"] + one["dur"] - end) for end in ends)
        open_ends[one["tid"]] = [*ends, one["ts"] + one["dur"]]
    return found


def _only(folder: Path) -> Path:
    (path,) = folder.glob("*.json")
    json.loads(path.read_text())
    return path


def _sums(path: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    for line in path.read_text().splitlines():
        stack, _, time = line.rpartition(" ")
        found[stack] += int(time)
    return found
