# SPDX-License-Identifier: Apache-2.0
"""Each small trace that is not what it should be, through info, check, analyze, slim and merge.

`tests/data/faults` holds the traces, and in `answers.json` what is right to say of each. After a
change of words `python tests/analysis/test_fault_inputs.py` writes the answers anew, to be read.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import invoked
from recorded_traces import FAULTS
from trace_builder import call

from megatron.torch_trace.gpu_record.captured_launches import captured_sentence

ANSWERS: dict[str, dict[str, Any]] = json.loads((FAULTS / "answers.json").read_text())
BASE = json.loads((FAULTS / "00-base.json").read_text())
Events = list[dict[str, Any]]


def ask(command: str, path: Path, *more: str) -> tuple[int, dict[str, Any] | str]:
    """The exit status, and what a command writes for machines or its error."""
    result = invoked(command, path, "--json", *more)
    status: int = getattr(result.exception, "exit_status", 0)
    return status, json.loads(result.stdout) if result.stdout else str(result.exception)


def answers(path: Path) -> dict[str, Any]:
    """What the three commands say, as in `answers.json`."""
    found: dict[str, Any] = {}
    for command, pick in (("info", _of_info), ("check", _of_check), ("analyze", _of_analyze)):
        status, said = ask(command, path)
        found[command] = {"status": status}
        found[command] |= {"error": said} if isinstance(said, str) else pick(said)
    return found


def _of_info(said: dict[str, Any]) -> dict[str, Any]:
    one = said["traces"][0]
    return {"problems": one["problems"], "steps": [step["step"] for step in one["steps"]]}


def _of_check(said: dict[str, Any]) -> dict[str, Any]:
    names = ("damage", "launches", "clock_offset_ns", "duplicate_gpu_events", "problems")
    return {name: said["traces"][0][name] for name in names}


def _of_analyze(said: dict[str, Any]) -> dict[str, Any]:
    rank = said["ranks"][0]
    return {
        **{name: rank[name] for name in ("rank", "unknown", "window_ns", "breakdown_ns")},
        "steps": [step["step"] for step in rank["steps"]],
        "idle": rank["host"]["idle"],
        "operators": {row["operator"]: row["kernels"] for row in rank["operators"]},
        "communication": {
            row["group"]: [row["dimension"], row["collective"], row["calls"]]
            for row in rank["communication"]
        },
        "findings": {finding["code"]: finding["title"] for finding in said["findings"]},
    }


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of files are said as they are given."""
    monkeypatch.chdir(FAULTS)


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_every_command_gives_the_right_answer(name: str) -> None:
    assert answers(Path(name)) == ANSWERS[name]


def test_every_file_has_its_answer() -> None:
    there = {path.name for path in FAULTS.glob("*.json*")}
    assert there - {"answers.json"} == set(ANSWERS)


@pytest.mark.parametrize("name", ["01-zero-byte-memsets.json", "14-torch18-step-category.json"])
def test_what_only_looks_odd_is_analysed_as_what_does_not(name: str) -> None:
    assert ANSWERS[name]["analyze"] == ANSWERS["00-base.json"]["analyze"]


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_slim_and_merge_keep_every_event_that_is_whole(name: str, tmp_path: Path) -> None:
    suffix = ".json.gz" if name.endswith(".gz") else ".json"
    first, second = (Path(shutil.copy(FAULTS / name, tmp_path / f"rank-{n}{suffix}")) for n in "01")
    same_rank = ANSWERS[name]["analyze"].get("rank") is not None
    for times, command in (
        (1, ["slim", "--preset", "perfetto", str(first)]),
        (2, ["merge", str(first), str(second)]),
    ):
        out = tmp_path / f"{command[0]}.json"
        result = invoked(*command, "-o", out)
        status = getattr(result.exception, "exit_status", 0)
        if "error" in ANSWERS[name]["info"] or (same_rank and times == 2):
            assert (status, out.exists()) == (2, False)
            said = "both are rank 0" if same_rank else "git lfs pull"
            assert said in str(result.exception)
            continue
        assert status == (3 if name.startswith("15-") else 0), result.output
        for category in ("kernel", "cpu_op", "python_function"):
            assert _count(out, category) == times * _count(first, category)


def _count(trace: Path, category: str) -> int:
    said = ask("info", trace)[1]
    assert isinstance(said, dict)
    found: int = said["traces"][0]["categories"].get(category, {"events": 0})["events"]
    return found


@pytest.mark.usefixtures("there")
def test_strict_refuses_the_second_document() -> None:
    for command in ("check", "analyze"):
        result = invoked(command, "--strict", "15-two-documents.json.gz")
        assert getattr(result.exception, "exit_status", 0) == 4, command
        said = f"{result.output} {result.exception}"
        assert "events of a second document after the end of the first, dropped" in said


def changed(folder: Path, change: Callable[[Events], Events]) -> Path:
    """The healthy trace with other events."""
    path = folder / "rank-0.json"
    events = change(json.loads(json.dumps(BASE["traceEvents"])))
    path.write_text(json.dumps({**BASE, "traceEvents": events}))
    return path


def of(events: Events, category: str) -> Events:
    return [event for event in events if event.get("cat") == category]


HOUR_US = 3_600_000_000
BEFORE = "40 of 40 GPU rows begin before the call that launched them"
CLOCKS = {
    -50: (-42_000, BEFORE),
    -5_000: (-4_992_000, BEFORE),
    -4 * HOUR_US: (-14_399_999_992_000, BEFORE),
    1_000: (1_008_000, "40 GPU rows begin late though the GPU was free"),
    9_000: (9_008_000, "40 GPU rows begin late though the GPU was free"),
    2_000_000: (1_998_023_000, "The GPU's rows begin after everything else has ended"),
    2 * HOUR_US: (7_199_998_023_000, "The GPU's rows begin after everything else has ended"),
}
"""By how many us the GPU's clock is off -> the offset that is sure, and what shows it."""


@pytest.mark.parametrize("off", CLOCKS)
def test_a_gpu_clock_ahead_or_behind_by_anything_makes_utilisation_unknown(
    off: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    offset, seen = CLOCKS[off]

    def shift(events: Events) -> Events:
        for event in of(events, "kernel"):
            event["ts"] += off
        return events

    found = answers(changed(tmp_path, shift))
    assert found["check"]["status"] == 3
    assert found["check"]["clock_offset_ns"] == offset
    sentence = found["analyze"]["unknown"]
    assert found["info"]["problems"] == found["check"]["problems"] == [sentence]
    assert sentence.startswith(f"{seen}: the GPU is on another clock than the CPU, ")
    assert (found["analyze"]["breakdown_ns"], found["analyze"]["window_ns"]) == (None, 1_995_000)
    assert list(found["analyze"]["findings"]) == ["gpu_on_another_clock"]


def test_steps_of_two_profilers_on_two_threads_are_all_of_the_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def second(events: Events) -> Events:
        marks = [
            {**mark, "tid": 777, "ts": mark["ts"] + 300} for mark in of(events, "user_annotation")
        ]
        return events + marks

    found = answers(changed(tmp_path, second))
    assert found["info"]["steps"] == [3, 3, 4, 4]
    assert found["info"]["problems"] == [
        "Steps 3-4 come more than once: a profiler was started again in this process; all 4 steps "
        "are in the window."
    ]
    assert (found["analyze"]["steps"], found["analyze"]["window_ns"]) == ([3, 3, 4, 4], 2_295_000)
    assert found["analyze"]["breakdown_ns"]["compute"] == 1_200_000


@pytest.mark.parametrize("ends_on", [600, 601])
@pytest.mark.parametrize("launches_on", [600, 602])
def test_a_capture_on_another_thread_makes_nothing_unknown(
    ends_on: int, launches_on: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def called(name: str, tid: int, ts: int, **args: int) -> dict[str, Any]:
        made = call(name, 1000 * ts, 1000 * ts + 1000, pid=500, tid=tid, args=args)
        found: dict[str, Any] = json.loads(made)
        return found

    def capture(events: Events) -> Events:
        marks = [
            called("cudaStreamBeginCapture", 600, 100),
            called("cudaStreamEndCapture", ends_on, 700),
        ]  # fmt: skip
        into = [
            called("cudaLaunchKernel", launches_on, 110 + 10 * number, correlation=7000 + number)
            for number in range(40)
        ]
        return events + marks + into

    found = answers(changed(tmp_path, capture))
    assert found["check"]["status"] == 0
    assert found["check"]["launches"]["captured"] == 40
    base = ANSWERS["00-base.json"]["analyze"]
    assert found["analyze"]["breakdown_ns"] == base["breakdown_ns"]
    assert found["info"]["problems"] == [captured_sentence(40, [3])]


@pytest.mark.parametrize("kinds", [["kernel"], ["kernel", "cuda_runtime"]])
@pytest.mark.parametrize("times", [1, 2])
def test_rows_that_are_written_again_count_once(
    kinds: list[str], times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = answers(
        changed(tmp_path, lambda all_: all_ + times * [one for one in all_ if one["cat"] in kinds])
    )
    assert (found["check"]["status"], found["check"]["duplicate_gpu_events"]) == (3, 40 * times)
    assert found["analyze"] == {**ANSWERS["00-base.json"]["analyze"], "rank": 0} | {
        "findings": found["analyze"]["findings"]
    }


def test_an_unknown_rank_is_called_nothing_else_on_the_terminal_and_the_page(
    tmp_path: Path,
) -> None:
    trace, page = FAULTS / "12-short-sync-long-python.json", tmp_path / "report.md"
    said = invoked("analyze", trace).output
    assert invoked("report", trace, "-o", page).exception is None
    for text in (said, page.read_text()):
        assert "rank 0" not in text
        assert "the CPU of this rank runs mydata.py(12): decode" in " ".join(text.split())
        assert "unknown" in text


if __name__ == "__main__":
    os.chdir(FAULTS)
    anew = {name: answers(Path(name)) for name in sorted(ANSWERS)}
    Path("answers.json").write_text(f"{json.dumps(anew, indent=1)}\n")
