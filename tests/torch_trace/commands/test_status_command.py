# SPDX-License-Identifier: Apache-2.0
"""What `torch-trace status` shows of a run, once and again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from megatron.torch_trace.commands.running import status

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
        "windows",
        "monitor, iteration 850",
    ]
