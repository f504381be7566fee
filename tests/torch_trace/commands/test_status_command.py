# SPDX-License-Identifier: Apache-2.0
"""What `torch-trace status` shows of a run, once and again."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from megatron.torch_trace.commands.running import status
from megatron.torch_trace.format import requests

MONITOR = {
    "iteration": 851,
    "monitor/iteration": 850,
    "monitor/iteration_ms": 640.0,
    "monitor/slowest_rank": 5,
    "monitor/slowest_by_ms": 41.2,
    "monitor/slowest_by_ms/forward": 40.0,
    "monitor/slowest_by_ms/data": 1.2,
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    plan = {"ranks": [0], "windows": [{"first": 3, "last": 3}]}
    (tmp_path / "run.json").write_text(json.dumps({"plan": plan}))
    return tmp_path


def monitored(run: Path) -> None:
    lines = [{"iteration": 850, "train/step_time_ms": 1.0}, MONITOR, {"iteration": 852}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run / "metrics.jsonl").write_text("x" * 1_000_000 + "\n" + text + '{"iteration": 853, "moni')


def test_it_shows_what_the_monitor_saw_last_and_who_left_hang_records(run: Path) -> None:
    monitored(run)
    (run / "hangs").mkdir()
    for rank, iteration in ((0, 87), (3, 86), (3, 12)):
        (run / "hangs" / f"rank-{rank}.iter-{iteration:07d}.hang.json").write_text("{}")
    shown = CliRunner().invoke(status.command, [str(run)]).output.splitlines()
    assert shown[-2:] == [
        "monitor, iteration 850: 640 ms an iteration; slowest rank 5, by 41.2 ms (forward)",
        "hang: records of ranks 0, 3, the last in iteration 87",
    ]
    answer = json.loads(CliRunner().invoke(status.command, [str(run), "--json"]).output)
    assert answer["monitor"]["monitor/slowest_rank"] == 5.0
    assert answer["hang_records"] == [{"rank": 0, "iteration": 87}, {"rank": 3, "iteration": 86}]


def test_numbers_that_json_does_not_know_are_in_no_answer(run: Path) -> None:
    numbers = MONITOR | {"monitor/iteration_ms": float("nan"), "monitor/slowest_by_ms": 1e999}
    (run / "metrics.jsonl").write_text(json.dumps(numbers) + "\n")
    (run / "requests").mkdir()
    (run / "requests" / "a.json").write_text("{}")
    told = '{"state": "done", "says": "recorded.", "first": NaN, "last": 1e999}'
    (run / "requests" / "a.answer.json").write_text(told)
    answer = CliRunner().invoke(status.command, [str(run), "--json"]).output
    assert "NaN" not in answer
    assert "Infinity" not in answer
    monitor = json.loads(answer)["monitor"]
    assert monitor["monitor/slowest_rank"] == 5.0
    request = json.loads(answer)["requests"][0]["answer"]
    assert (request["first"], request["last"]) == (None, None)
    assert not {"monitor/iteration_ms", "monitor/slowest_by_ms"} & set(monitor)


@pytest.mark.parametrize("text", ["", "[]", '{"monitor/iteration": "x"}', "\0" * 100])
def test_numbers_that_are_none_are_not_shown(run: Path, text: str) -> None:
    (run / "metrics.jsonl").write_text(text)
    result = CliRunner().invoke(status.command, [str(run)])
    assert result.exit_code == 0
    assert "monitor" not in result.output


def test_follow_prints_what_has_changed_and_nothing_twice(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([lambda: None, lambda: monitored(run)])

    def sleep(seconds: float) -> None:
        try:
            next(looks)()
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(status.time, "sleep", sleep)
    shown = CliRunner().invoke(status.command, [str(run), "--follow"]).output.splitlines()
    assert [line.partition(":")[0] for line in shown if line][:-1] == [
        "plan",
        "training",
        "windows",
        "monitor, iteration 850",
    ]


@pytest.mark.parametrize(
    ("silent", "said"),
    [
        (3.0, "3 s ago"),
        (-50.0, "0 s ago"),
        (119.0, "119 s ago"),
        (840.0, "14 min ago"),
        (3 * 3600.0, "3 h ago"),
        (49 * 3600.0, "2 days ago"),
    ],
)
def test_of_a_training_that_may_run_the_last_sign_of_life_is_shown(
    run: Path, monkeypatch: pytest.MonkeyPatch, silent: float, said: str
) -> None:
    monitored(run)
    written = (run / "metrics.jsonl").stat().st_mtime
    os.utime(run / "run.json", times=(0, written - 1e6))
    monkeypatch.setattr(time, "time", lambda: written + silent)
    # Whoever looks at a run leaves files in it, which are no sign of its life.
    (run / "iter-0000003").mkdir()
    (run / "iter-0000003" / "artifacts").mkdir()
    assert shown(run)[1] == (
        "training: unknown whether it has ended; last sign of life "
        f"{said}: metrics.jsonl, iteration 852"
    )
    training = answered(run)["training"]
    assert isinstance(training, dict)
    assert {name: training[name] for name in ("has_ended", "iteration", "last_iteration")} == {
        "has_ended": None,
        "iteration": 852,
        "last_iteration": None,
    }


@pytest.mark.parametrize(("last", "has_ended"), [(853, None), (852, True), (800, True)])
def test_a_training_that_has_logged_its_last_iteration_has_ended(
    run: Path, last: int, has_ended: bool | None
) -> None:
    monitored(run)
    plan = {"ranks": [0], "windows": [], "last_iteration": last}
    (run / "run.json").write_text(json.dumps({"plan": plan}))
    said = "has ended" if has_ended else "unknown whether it has ended"
    line = shown(run)[1]
    assert line.startswith(f"training: {said}; last sign of life ")
    assert line.endswith(f", iteration 852 of {last:,}")
    training = answered(run)["training"]
    assert isinstance(training, dict)
    assert training["has_ended"] is has_ended


def test_a_training_that_has_refused_a_request_because_it_had_ended_has_ended(run: Path) -> None:
    (run / "requests").mkdir()
    (run / "requests" / "a.json").write_text("{}")
    told = {"state": "refused", "says": requests.TRAINING_HAS_ENDED}
    (run / "requests" / "a.answer.json").write_text(json.dumps(told))
    assert shown(run)[1].startswith("training: has ended; last sign of life ")


@pytest.mark.parametrize(
    ("content", "said", "error"),
    [
        ('{"ended": "2026-11-29T19:40:02+00:00", "error": null}', "has ended; last sign", None),
        (
            '{"ended": "2026-11-29T19:40:02+00:00", "error": "ValueError"}',
            "has ended with ValueError; last sign",
            "ValueError",
        ),
        ('{"ended": 7, "error": 7}', "unknown whether it has ended; last sign", None),
        ("{", "unknown whether it has ended; last sign", None),
    ],
)
def test_a_training_that_has_left_its_loop_has_ended(
    run: Path, content: str, said: str, error: str | None
) -> None:
    (run / "ended.json").write_text(content)
    assert shown(run)[1].startswith(f"training: {said} of life ")
    training = answered(run)["training"]
    assert isinstance(training, dict)
    assert training["error"] == error


def test_a_trace_that_was_written_last_is_a_sign_of_life(run: Path) -> None:
    window = run / "iter-0000003"
    window.mkdir()
    (window / "rank-0.pt.trace.json.gz").touch()
    at = (run / "run.json").stat().st_mtime + 10
    os.utime(window / "rank-0.pt.trace.json.gz", times=(at, at))
    assert shown(run)[1].endswith(": iter-0000003/rank-0.pt.trace.json.gz")


def test_a_run_of_which_nothing_is_left_but_a_window_tells_nothing_of_its_end(
    tmp_path: Path,
) -> None:
    (tmp_path / "iter-0000003").mkdir()
    assert shown(tmp_path)[1] == "training: unknown whether it has ended"
    assert answered(tmp_path)["training"] is None


def shown(run: Path) -> list[str]:
    return CliRunner().invoke(status.command, [str(run)]).output.splitlines()


def answered(run: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(
        CliRunner().invoke(status.command, [str(run), "--json"]).output
    )
    return found
