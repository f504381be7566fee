# SPDX-License-Identifier: Apache-2.0
"""The report of a run: its windows side by side, and what changed between them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command_line import invoked
from page_reading import read

from megatron.torch_trace.format.breakdown_parts import BREAKDOWN_HEADS
from megatron.torch_trace.report.run_page.windows import Windows, table
from megatron.torch_trace.report.tables import Cell, Row
from megatron.torch_trace.wording import UNKNOWN

SAMPLES = Path(__file__).parents[1] / "data"
WINDOWS = ("iter-0000003", "iter-0000006-0000007")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two windows, of two samples, with metrics of the run."""
    folder = tmp_path_factory.mktemp("job") / "20261127-221810"
    for window, sample in zip(WINDOWS, ("tp2pp2-spans", "tp2pp2"), strict=True):
        shutil.copytree(SAMPLES / sample, folder / window)
    lines = [{"iteration": n, "gpu/power_w": 400.0 + n} for n in range(3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    return folder


def test_the_page_of_a_run_has_a_row_for_each_window_and_says_what_changed(
    run: Path, tmp_path: Path
) -> None:
    output = tmp_path / "report.html"
    assert invoked("report", run, "-o", output).exit_code == 0
    page = read(output.read_text())
    assert len({*page.ids}) == len(page.ids)
    assert page.sections[:6] == ["iterations", "events", "windows", "changes", "telemetry", "run"]
    head, *rows = page.tables["means"]
    assert [row[0] for row in rows] == list(WINDOWS)
    for window, row in zip(WINDOWS, rows, strict=True):
        found = json.loads(invoked("analyze", run / window, "--no-gains", "--json").output)
        iteration = float(row[head.index("iteration ms")].replace(",", ""))
        assert iteration == pytest.approx(found["summary"]["iteration_ns"] / 1e6, rel=0.005)
    assert "A and B do not do the same work in an iteration" in page.text
    # The analysis of one window tells hosts and traces, and the page says which one that is.
    assert f"Traces of {WINDOWS[-1]}" in page.text


def test_a_column_of_which_no_window_knows_anything_is_left_out() -> None:
    names = ["window", "ranks", "breakdown", "iteration ms", "undisturbed ms", "slowdown"]
    names += [*BREAKDOWN_HEADS.values(), "MFU", "first finding"]
    unknown = dict.fromkeys(names, Cell(UNKNOWN))
    rows = [unknown | {"window": Cell(window), "ranks": Cell("2")} for window in WINDOWS]
    rows[1]["slowdown"] = Cell("1.2")
    made = tuple(Row(tuple(row[name] for name in names)) for row in rows)
    (found,) = table(Windows(made, (), None, ())).tables
    assert found is not None
    assert [column.title for column in found.columns] == ["window", "ranks", "slowdown"]
    assert [[cell.text for cell in row.cells] for row in found.rows] == [
        [WINDOWS[0], "2", UNKNOWN],
        [WINDOWS[1], "2", "1.2"],
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--step", 3), "--step 3: is of one window; name its folder instead of the run's."),
        (("-o", "r.md"), "-o r.md: the report of a run is a page (.html); Markdown is of one"),
    ],
)
def test_what_is_of_one_window_is_refused_for_a_run(
    run: Path, arguments: tuple[object, ...], sentence: str, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert str(invoked("report", run, *arguments).exception).startswith(sentence)
    assert list(tmp_path.iterdir()) == []


def test_a_window_that_cannot_be_analysed_is_a_note(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "20261127-221810"
    shutil.copytree(run, copy)
    broken = copy / "iter-0000009"
    broken.mkdir()
    (broken / "rank-0.pt.trace.json").write_text('{"traceEvents": []}')
    output = tmp_path / "report.html"
    assert invoked("report", copy, "-o", output).exit_code == 0
    page = read(output.read_text())
    assert len(page.tables["means"]) == 3
    assert "iter-0000009" in page.text


def test_a_run_without_a_window_shows_its_iterations(tmp_path: Path) -> None:
    run = tmp_path / "20261127-221810"
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"run": run.name, "world_size": 1}))
    lines = [{"iteration": n, "iteration-time": 0.5} for n in range(1, 9)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    output = tmp_path / "report.html"
    assert invoked("report", run, "-o", output).exit_code == 0
    assert read(output.read_text()).sections[0] in ("iterations", "left-out")
