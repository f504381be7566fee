# SPDX-License-Identifier: Apache-2.0
"""What is logged of a window, from traces that were recorded on GPUs."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megatron.torch_profile.export import own_process
from megatron.torch_profile.publish import sinks, wandb_charts, window_summary
from megatron.torch_profile.publish.window_summary import (
    RANK_COLUMNS,
    main,
    read,
    wait_for_traces,
)
from megatron.torch_trace.format.breakdown_parts import BREAKDOWN_PARTS
from megatron.torch_trace.format.file_names import kept_analysis_of

ROOT = Path(__file__).parents[3]
TRACES = ROOT / "tests" / "data" / "tp2pp2"


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two of three planned ranks, summarised."""
    folder = tmp_path_factory.mktemp("run") / "iter-0000003"
    folder.mkdir()
    for rank in (0, 3):
        shutil.copy(TRACES / f"rank-{rank}.pt.trace.json.gz", folder)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(own_process, "give_way", lambda: None)
        main([str(folder), "--ranks", "0", "1", "3", "--wait", "0", "--analyse"])
    return folder


def test_a_summary_holds_what_the_analysis_knows(window: Path) -> None:
    summary = read(window)
    assert (summary.first, summary.last, summary.missing_ranks) == (3, 3, [1])
    parts = [summary.scalars[f"profile/{part}_pct"] for part in BREAKDOWN_PARTS]
    assert sum(parts) == pytest.approx(100.0)
    dimensions = [summary.scalars[f"profile/exposed_{name}_pct"] for name in ("tp", "pp")]
    assert 0 < sum(dimensions) <= summary.scalars["profile/exposed_communication_pct"]
    assert summary.scalars["profile/iteration_ms"] == pytest.approx(450.35, abs=0.01)
    assert summary.scalars["profile/ranks"] == 2
    assert [row[0] for row in summary.ranks] == [0, 3]
    first, last = RANK_COLUMNS.index("compute_pct"), RANK_COLUMNS.index("idle_pct")
    for row in summary.ranks:
        assert sum(cell or 0.0 for cell in row[first : last + 1]) == pytest.approx(100.0)
    assert summary.findings
    assert [path.name for path in window.iterdir() if path.is_file()] == [
        f"rank-{rank}.pt.trace.json.gz" for rank in sorted((0, 3))
    ], "readers of the folder find traces and nothing else"


def test_every_key_of_a_window_has_its_row_in_the_document(window: Path) -> None:
    text = (ROOT / "docs" / "metrics.md").read_text()
    documented = set(re.findall(r"`(profile/[^`*\n]+)`", text))
    summary = read(window)
    keys = {
        re.sub("exposed_(?!communication|memory)[a-z]+", "exposed_<dimension>", key)
        for key in [*summary.scalars, *wandb_charts.charts(summary)]
    }
    # These traces do not hold the model's FLOPs.
    assert documented == keys | {"profile/mfu_pct", sinks.WINDOW_AXIS}


def test_the_line_names_the_parts_and_the_ranks_that_are_missing(window: Path) -> None:
    summary = replace(read(window), findings=[])
    summary.scalars.update({f"profile/{part}_pct": 25.0 for part in BREAKDOWN_PARTS})
    assert summary.line() == (
        "iteration 3: compute 25 %, exposed communication 25 %, exposed copies 25 %, "
        "idle 25 % (2 ranks; without rank 1)"
    )
    bare = replace(summary, last=4, scalars={}, missing_ranks=[])
    assert bare.line() == "iterations 3-4: no GPU work in the traces (2 ranks)"


def test_wandb_gets_two_tables_and_a_figure_where_shares_are_known(window: Path) -> None:
    summary = read(window)
    charts = wandb_charts.charts(summary)
    assert list(charts) == [
        "profile/findings",
        "profile/breakdown_by_rank",
        "profile/breakdown",
    ]
    assert charts["profile/breakdown_by_rank"].data == summary.ranks
    assert charts["profile/findings"].data == summary.findings
    assert "profile/breakdown" not in wandb_charts.charts(replace(summary, scalars={}))


class Clock:
    """Time that passes only while somebody sleeps; `at` says what happens when."""

    def __init__(self, at: dict[float, Callable[[], Any]]) -> None:
        self.now = 0.0
        self._at = at

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self._at.get(self.now, lambda: None)()


def test_traces_are_waited_for_until_all_are_there_or_time_is_up(tmp_path: Path) -> None:
    second = tmp_path / "rank-01.partial.pt.trace.json.zst"
    (tmp_path / "rank-00.pt.trace.json.gz").touch()
    (tmp_path / "rank-02.pt.trace.json.gz.tmp").touch()
    clock = Clock({1.0: second.touch})
    found = wait_for_traces(tmp_path, [0, 1], 60.0, sleep=clock.sleep, clock=clock)
    assert (list(found), clock.now) == ([0, 1], 1.0)
    clock = Clock({})
    found = wait_for_traces(tmp_path, [0, 1, 2], 60.0, sleep=clock.sleep, clock=clock)
    assert (list(found), clock.now) == ([0, 1], 60.0)
    assert wait_for_traces(tmp_path / "none", [0], 0.0) == {}


def test_a_rank_that_writes_nothing_is_not_waited_for_and_one_that_writes_is(
    tmp_path: Path,
) -> None:
    (tmp_path / "rank-0.pt.trace.json.gz").touch()
    growing = tmp_path / "rank-1.json.tmp"
    clock = Clock({10.0: growing.touch, 25.0: lambda: growing.write_text("x")})
    found = wait_for_traces(tmp_path, [0, 1], 600.0, 20.0, sleep=clock.sleep, clock=clock)
    assert (list(found), clock.now) == ([0], 45.0)


def test_each_ranks_own_analysis_is_waited_for_while_they_come(tmp_path: Path) -> None:
    traces = [tmp_path / f"rank-{rank}.pt.trace.json.gz" for rank in range(3)]
    (tmp_path / "artifacts").mkdir()
    partials = [kept_analysis_of(trace) for trace in traces]
    partials[0].touch()
    clock = Clock({15.0: partials[1].touch, 30.0: partials[2].touch})
    window_summary.wait_for_partials(traces, clock.sleep, clock)
    assert clock.now == 30.0
    partials[1].unlink()
    clock = Clock({})
    window_summary.wait_for_partials(traces, clock.sleep, clock)
    assert clock.now == 20.0


def test_traces_that_cannot_be_analysed_are_an_error_in_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_process, "give_way", lambda: None)
    folder = tmp_path / "iter-0000003"
    folder.mkdir()
    trace = folder / "rank-0.pt.trace.json"
    trace.write_text("no trace")
    main([str(folder), "--ranks", "0", "--wait", "0", "--analyse"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["traces"] == [str(trace)]
    assert answer["error"].startswith("nothing could be analysed: ")
    assert not (folder / "artifacts").exists()
