# SPDX-License-Identifier: Apache-2.0
"""The training loop's thread on the page: an icicle and a tree with the numbers of `--json`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from analyze_document import document
from many_ranks import of_many
from trace_builder import GEMM, TraceBuilder

from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.analysis.run.analyse import analyze
from megatron.torch_trace.report.figures.icicle import Icicle
from megatron.torch_trace.report.figures.loop_icicle import loop_icicle
from megatron.torch_trace.report.html import render_html
from megatron.torch_trace.report.sections import loop_thread
from megatron.torch_trace.report.tables import At
from megatron.torch_trace.wording import duration

MS = 1_000_000
SAMPLES = Path(__file__).parents[2] / "data"
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def two_steps(tmp_path: Path) -> Analysis:
    """Of 200 ms: 80 in a function that passes on to a forward, 4 short, 116 with nothing."""
    trace = TraceBuilder().step(1, 0, 100 * MS).step(2, 100 * MS, 200 * MS)
    trace.gpu(GEMM, 10 * MS, 20 * MS)
    for at in (0, 100 * MS):
        trace.slice("python_function", "/root/a/module.py(9): _call_impl", at, 40 * MS)
        trace.slice("python_function", "/root/a/mlp.py(7): forward", at, 39 * MS)
        trace.op("aten::mm", at + 4 * MS, at + 20 * MS).op(HOSTILE, at + 20 * MS, at + 30 * MS)
        for number in range(5):
            start = at + 50 * MS + number * MS
            trace.op(f"aten::short{number}", start, start + 400_000)
    trace.write(tmp_path / "rank-0.json")
    return analyze(tmp_path, jobs=1)


def test_the_icicle_draws_an_iteration_with_what_only_passes_on_as_one(
    two_steps: Analysis,
) -> None:
    figure = loop_icicle(two_steps.ranks[0], "rank 0", 2)
    assert figure is not None
    assert figure.caption == "Rank 0: the training loop's thread, by what encloses what"
    assert figure.rows == 2
    assert figure.parts == (
        Icicle(
            0.0,
            40.0,
            0,
            "module.py(9): _call_impl › mlp.py(7): forward",
            "module.py(9): _call_impl › mlp.py(7): forward: 40 ms an iteration, 40 % of the "
            "thread, 14 ms of it its own, once",
            "loop-python",
            At(0, 0, 39 * MS),
        ),
        Icicle(
            0.0,
            16.0,
            1,
            "aten::mm",
            "aten::mm: 16 ms an iteration, 16 % of the thread, 16 ms of it its own, once",
            "loop-operator",
            At(0, 4 * MS, 16 * MS),
        ),
        Icicle(
            16.0,
            10.0,
            1,
            HOSTILE,
            f"{HOSTILE}: 10 ms an iteration, 10 % of the thread, 10 ms of it its own, once",
            "loop-operator",
            At(0, 20 * MS, 10 * MS),
        ),
        Icicle(
            40.0,
            2.0,
            0,
            "",
            "5 shorter paths: 2 ms an iteration, 2.0 % of the thread",
            "loop-others",
            None,
        ),
    )
    assert figure.told == (
        "The whole width is 100 ms, an iteration. Below each part is what lies in it in time; what "
        "is empty below a part is its own. To the right, 58 ms, nothing is recorded on the thread."
    )
    assert figure.legend == (
        ("loop-python", "Python"),
        ("loop-operator", "operator"),
        ("loop-others", "shorter ones together"),
    )


def test_the_tree_beside_it_adds_up_to_the_thread(two_steps: Analysis) -> None:
    (tree,) = loop_thread.tables(two_steps)
    assert [(row.level, row.cells[0].text, row.cells[3].sort) for row in tree.rows] == [
        (1, "module.py(9): _call_impl › mlp.py(7): forward", 80 * MS),
        (2, "aten::mm", 32 * MS),
        (2, HOSTILE, 20 * MS),
        (1, "(5 shorter paths)", 4 * MS),
        (1, "(nothing recorded)", 116 * MS),
    ]
    assert sum(row.cells[3].sort or 0 for row in tree.rows if row.level == 1) == 200 * MS
    assert tree.rows[0].cells[0].full == (
        "/root/a/module.py(9): _call_impl › /root/a/mlp.py(7): forward"
    )


def test_hostile_names_are_text(two_steps: Analysis) -> None:
    page = render_html(two_steps)
    assert "<img" not in page
    assert "&lt;img" in page[page.index('id="host"') :]


def test_figure_tree_and_document_have_one_number(spans: Analysis) -> None:
    rank = spans.ranks[0]
    rows = document(spans)["ranks"][0]["host"]["loop_paths"]
    thread, first = rows[0], rows[1]
    assert thread["time_ns"] == rank.window_ns
    assert (first["above"], first["name"]) == (0, "forward-backward")
    page = render_html(spans)
    share = round(100 * first["time_ns"] / thread["time_ns"], 2)
    assert f'<i class="loop-span" style="left:0.0%;width:{share}%;top:0px"' in page
    assert f'title="forward-backward: {duration(first["time_ns"])} an iteration' in page
    tree = page[page.index('id="thread-0"') :]
    row = tree[tree.index("<tbody>") : tree.index("</tr>", tree.index("<tbody>"))]
    words = re.sub(r"<[^>]+>", " ", row).split()
    assert words[:3] == ["forward-backward", "span", str(first["calls"])]
    assert f"{words[3]} ms" == duration(first["time_ns"])


def test_names_of_modules_say_what_they_add(spans: Analysis) -> None:
    figure = loop_icicle(spans.ranks[0], "rank 0", 1)
    assert figure is not None
    told = [one.told.split(": ")[0] for one in figure.parts]
    assert "self_attention" in told
    assert any(" › layers.*: TransformerLayer: " in one.told for one in figure.parts)


def test_the_first_and_the_last_stage_and_the_straggler_are_shown() -> None:
    found = analyze(SAMPLES / "analysis" / "dp4-rank2-slow", jobs=1)
    assert [one.caption.split(":")[0] for one in loop_thread.figures(found)] == [
        "Rank 0",
        "Rank 2, the straggler",
    ]


def test_of_many_ranks_few_are_shown(spans: Analysis) -> None:
    many = of_many(spans, 64)
    assert len(loop_thread.figures(many)) <= 3
    assert len(loop_thread.tables(many)) == len(loop_thread.figures(many))


def test_without_paths_there_is_no_figure(two_steps: Analysis) -> None:
    rank = two_steps.ranks[0]
    bare = replace(rank, host=replace(rank.host, loop_paths=()))
    assert loop_icicle(bare, "rank 0", 2) is None
    assert loop_thread.tables(replace(two_steps, ranks=(bare,))) == []
