# SPDX-License-Identifier: Apache-2.0
"""What happened in a run, from its small files: events, and the picture of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.analysis.results.run_record import RunRecord, Series
from megatron.torch_trace.commands.running.status import command
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.inspect.named_ranks import named_ranks
from megatron.torch_trace.inspect.run_history import Event, run_history
from megatron.torch_trace.report.run_page.history import sections_of_run, timeline_of
from megatron.torch_trace.report.section import Subject
from megatron.torch_trace.report.sections.run import telemetry

FIRST, SECOND = "20261128-120000", "20261128-180000"


def launch(parent: Path, name: str, lines: list[dict[str, Any]], **arguments: Any) -> Path:
    folder = parent / name
    folder.mkdir()
    run = {"world_size": 4, "plan": {"ranks": [0], "windows": []}, "arguments": arguments}
    (folder / "run.json").write_text(json.dumps(run))
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)
    return folder


def steps(first: int, last: int, ms: float = 100.0) -> list[dict[str, Any]]:
    return [{"iteration": at, "train/step_time_ms": ms} for at in range(first, last + 1)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two launches of one training, and one of another beside them."""
    saves = {"save": "/checkpoints/a", "save_interval": 25, "eval_iters": 5, "eval_interval": 40}
    slow = {
        "iteration": 34,
        "monitor/slow_rank": 3,
        "monitor/slow_since": 31,
        "monitor/slow_seen": 33,
        "monitor/slow_by_ms": 41.2,
        "monitor/slow_by_ms/forward": 41.2,
    }
    grows = {
        "iteration": 34,
        "monitor/growing_rank": 1,
        "monitor/growing_since": 11,
        "monitor/growing_seen": 34,
        "monitor/growing_mb_per_iteration": 0.5,
    }
    long = [{"iteration": 41, "train/step_time_ms": 5000.0}]
    first = launch(tmp_path, FIRST, [*steps(1, 40), slow, grows, *long, *steps(42, 60)], **saves)
    window = first / "iter-0000010-0000012"
    window.mkdir()
    for rank in (0, 1):
        (window / f"rank-{rank}.pt.trace.json.gz").touch()
    (first / "requests").mkdir()
    (first / "requests" / "r.json").write_text("{}")
    answer = {"state": "done", "says": "recorded iteration 20 on rank 1.", "first": 20, "last": 20}
    (first / "requests" / "r.answer.json").write_text(json.dumps(answer))
    (first / "requests" / "s.json").write_text("{}")
    (first / "hangs").mkdir()
    for rank in (0, 2):
        (first / "hangs" / f"rank-{rank}.iter-0000060.hang.json").touch()
    launch(tmp_path, SECOND, steps(51, 100), **saves)
    launch(tmp_path, "20261128-190000", steps(1, 5), save="/checkpoints/b")
    return first


def test_what_happened_stands_in_the_order_of_iterations(run: Path) -> None:
    history = run_history(run)
    assert [one.name for one in history.launches] == [FIRST, SECOND]
    assert history.span == (1, 100)
    assert history.regular == {"checkpoint": 25, "evaluation": 40}
    assert history.events == (
        Event("window", 10, 12, "iter-0000010-0000012: traces of ranks 0-1.", FIRST),
        Event(
            "memory",
            11,
            34,
            "the memory of rank 1 on its host grows by 500 kB an iteration.",
            FIRST,
        ),
        Event("request", 20, 20, "r: done: recorded iteration 20 on rank 1.", FIRST),
        Event("slow_rank", 31, 33, "rank 3 is slow: 41.2 ms longer in forward.", FIRST),
        Event("restart", 51, 51, f"{SECOND} begins.", SECOND),
        Event("hang", 60, 60, "no iteration ended: hang records of ranks 0, 2.", FIRST),
        Event("request", None, None, "s: no answer yet.", FIRST),
    )


def test_values_that_are_no_numbers_are_no_events(run: Path, tmp_path: Path) -> None:
    odd = [
        {"iteration": at, name: value}
        for at, value in ((37, float("nan")), (38, float("inf")))
        for name in ("monitor/slow_rank", "monitor/slow_since", "monitor/iteration")
    ]
    before = run_history(run)
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in odd)
    assert run_history(run).events == before.events
    assert sections_of_run(run)
    slowest = {name: float("nan") for name in ("monitor/iteration", "monitor/slowest_by_ms")}
    line = {"iteration": 9, "monitor/iteration_ms": 1.0, "monitor/slowest_rank": 1} | slowest
    other = tmp_path / "other"
    other.mkdir()
    assert run_history(launch(other, FIRST, [line])).events == ()


def test_a_mark_lies_at_its_iteration_and_the_longest_iteration_is_told(run: Path) -> None:
    timeline = timeline_of(run_history(run))
    assert timeline is not None
    assert timeline.told == "Iterations 1 to 100: the median takes 100 ms."
    marks = {lane.label: [(m.left, m.width) for m in lane.marks] for lane in timeline.lanes}
    assert marks == {
        "windows": [(9.0, 3.0)],
        "requests": [(19.0, 1.0)],
        "slow ranks": [(30.0, 3.0)],
        "growing memory": [(10.0, 24.0)],
        "hangs": [(59.0, 1.0)],
        "checkpoints": [(24.0, 0.0), (49.0, 0.0), (74.0, 0.0), (99.0, 0.0)],
        "evaluations": [(39.0, 0.0), (79.0, 0.0)],
    }
    assert timeline.restarts == ((500.0, f"{SECOND} begins."),)
    assert timeline.top == "400 ms"
    assert timeline.notes[0] == ("1 iteration is longer than the picture is high, the longest 5 s.")
    curve, after = timeline.paths
    assert "405.0 0.0" in curve
    assert curve.startswith("M5.0 120.0")
    assert after.startswith("M505.0 120.0")


def test_status_shows_the_ranks_that_the_monitor_has_named(run: Path) -> None:
    said = CliRunner().invoke(command, [str(run)]).stdout.splitlines()
    assert said[-3:-1] == [
        "monitor, iterations 31-33: rank 3 is slow: 41.2 ms longer in forward.",
        "monitor, iterations 11-34: the memory of rank 1 on its host grows by 500 kB an iteration.",
    ]


@pytest.mark.parametrize(
    "line",
    [
        '"monitor/slow_rank"',
        '["monitor/slow_rank"]',
        '{"monitor/slow_rank": "one"}',
        '{"monitor/slow_rank": 1, "monitor/slow_since": 1e999}',
        '{"monitor/growing_rank": 1}',
        '{"monitor/growing_rank": 1, "monitor/growing_mb_per_iteration": [',
    ],
)
def test_a_line_of_the_monitor_that_is_not_whole_names_nobody(line: str) -> None:
    assert [*named_ranks([line.encode()])] == []


def test_two_ranks_that_are_named_before_one_log_of_megatron_are_both_told(tmp_path: Path) -> None:
    lines = [{"iteration": 50, "monitor/slow_rank": rank} for rank in (1, 2)]
    run = launch(tmp_path, FIRST, [*steps(1, 50), *lines, {"iteration": 51}])
    assert [one.sentence for one in run_history(run).events] == [
        "rank 1 is slow: much longer.",
        "rank 2 is slow: much longer.",
    ]


@pytest.mark.parametrize(
    ("last", "ticks"),
    [
        (7, ["1", "2", "3", "4", "5", "6", "7"]),
        (30, ["5", "10", "15", "20", "25", "30"]),
        (2000, ["500", "1,000", "1,500", "2,000"]),
    ],
)
def test_ticks_are_ones_twos_or_fives_of_a_power_of_ten(
    tmp_path: Path, last: int, ticks: list[str]
) -> None:
    timeline = timeline_of(run_history(launch(tmp_path, FIRST, steps(1, last))))
    assert timeline is not None
    assert [label for _, label in timeline.ticks] == ticks


def test_the_table_has_the_events_of_status_json(run: Path) -> None:
    _, events = sections_of_run(run)
    (table,) = [one for one in events.tables if one]
    told = [row.cells[2].text for row in table.rows]
    document = json.loads(CliRunner().invoke(command, [str(run), "--json"]).stdout)
    assert [one["says"] for one in document["events"]] == told
    assert document["events"][3] == {
        "kind": "slow_rank",
        "first": 31,
        "last": 33,
        "says": "rank 3 is slow: 41.2 ms longer in forward.",
        "run": FIRST,
    }


def test_with_the_monitor_alone_a_point_is_the_median_of_an_interval(tmp_path: Path) -> None:
    lines = [
        {
            "iteration": at + 2,
            "monitor/iteration": at,
            "monitor/iteration_ms": 100.0,
            "monitor/slowest_rank": 1,
            "monitor/slowest_by_ms": 20.0 if at == 20 else 1.0,
        }
        for at in (10, 20, 30)
    ]
    history = run_history(launch(tmp_path, FIRST, lines))
    assert history.launches[0].milliseconds == {10: 100.0, 20: 100.0, 30: 100.0}
    words = "rank 1 was the slowest of the interval, by 20 ms."
    assert history.events == (Event("slow_rank", 11, 20, words, FIRST),)
    timeline = timeline_of(history)
    assert timeline is not None
    assert timeline.notes == ("Each point is the median of an interval of the monitor.",)


def test_a_run_that_has_logged_nothing_says_so(tmp_path: Path) -> None:
    (section,) = sections_of_run(launch(tmp_path, FIRST, []))
    assert section.missing == (
        "The run has logged no iteration (--torch-profile-monitor, or metrics.jsonl)."
    )


def test_without_times_the_picture_has_no_scale_and_says_what_would_note_them(
    tmp_path: Path,
) -> None:
    folder = launch(tmp_path, FIRST, [])
    window = folder / "iter-0000010-0000012"
    window.mkdir()
    (window / "rank-0.pt.trace.json.gz").touch()
    timeline = timeline_of(run_history(folder))
    assert timeline is not None
    assert (timeline.top, timeline.bottom) == ("", "")
    assert timeline.told == (
        "Iterations 10 to 12. The run has not noted how long they took; --torch-profile-monitor "
        "does, and --log-timers-to-wandb, also without W&B."
    )


def test_a_hundred_thousand_iterations_are_a_small_picture_that_loses_no_extreme(
    tmp_path: Path,
) -> None:
    lines = steps(1, 100_000)
    lines[77_777]["train/step_time_ms"] = 250.0
    timeline = timeline_of(run_history(launch(tmp_path, FIRST, lines)))
    assert timeline is not None
    assert len(timeline.paths[0]) < 20_000
    assert timeline.paths[0].count(" 0.0") == 1


def test_numbers_of_slow_ranks_that_were_named_are_events_and_no_curves(tp2pp2: Analysis) -> None:
    names = ("monitor/slow_rank", "monitor/slow_by_ms/data", "monitor/iteration", "monitor/own_ms")
    record = RunRecord("run", {}, tuple(Series(name, (3,), (1.0,)) for name in names))
    groups = telemetry(Subject(tp2pp2, record)).data["groups"]
    assert {group: [line.name for line in lines] for group, lines in groups.items()} == {
        "monitor": ["own_ms"]
    }


def test_metrics_that_are_always_zero_are_named_and_not_drawn(tp2pp2: Analysis) -> None:
    series = (
        Series("compile/recompiles", (3, 4), (0.0, 0.0)),
        Series("compile/graph_breaks", (3, 4), (0.0, 1.0)),
        Series("monitor/pipeline_ms", (3, 4), (0.0, 0.0)),
    )
    data = telemetry(Subject(tp2pp2, RunRecord("run", {}, series))).data
    assert {group: [line.name for line in lines] for group, lines in data["groups"].items()} == {
        "compile": ["graph_breaks"]
    }
    assert data["zeros"] == "compile/recompiles, monitor/pipeline_ms"


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not the folder of a run"):
        sections_of_run(tmp_path)
