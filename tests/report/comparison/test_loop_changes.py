# SPDX-License-Identifier: Apache-2.0
"""The training loop's thread of two runs: what is too short on one side is neither new nor gone."""

from __future__ import annotations

import json
from pathlib import Path

from command_line import invoked
from run_pairs import compared, told
from trace_builder import GEMM, TraceBuilder

from megatron.torch_trace.report.comparison.loop_changes import loop_changes

MS = 1_000_000


def window(
    folder: Path, operators: dict[str, float], *, function: str = "", span: str = ""
) -> Path:
    """Two ranks with an operator of so many ms each, on rank 1 a little longer.

    Args:
        operators: name -> ms.
        function: a Python function around all of them.
        span: a span of a phase beside them.
    """
    for rank in (0, 1):
        trace = TraceBuilder(rank, 2).step(1, 0, 100 * MS).gpu(GEMM, 0, MS)
        if function:
            trace.slice("python_function", function, 0, 90 * MS)
        if span:
            trace.annotation(span, 92 * MS, 93 * MS)
        at = MS
        for name, length in operators.items():
            end = at + round((length + 0.01 * rank) * MS)
            trace.op(name, at, end)
            at = end
        trace.write(folder / f"rank-{rank}.json")
    return folder


def drawn(a: Path, b: Path) -> dict[str, tuple[str, str]]:
    return told(loop_changes(compared(a, b).loop_tree))


def test_what_is_sure_is_coloured_with_the_time_in_which_nothing_is_recorded(
    tmp_path: Path,
) -> None:
    a = window(tmp_path / "a", {"mm": 8, "norm": 5, "old": 4, "same": 6})
    b = window(tmp_path / "b", {"mm": 10, "norm": 4, "fused": 7, "same": 6})
    assert drawn(a, b) == {
        "mm": ("longer", "mm +2.00 ms"),
        "norm": ("shorter", "norm -1.00 ms"),
        "old": ("gone", "old (gone)"),
        "fused": ("new", "fused (new)"),
        "same": ("", "same"),
        "(nothing recorded)": ("shorter", "(nothing recorded) -4.00 ms"),
    }


def test_what_may_only_be_too_short_is_neither_new_nor_gone(tmp_path: Path) -> None:
    a = window(tmp_path / "a", {"mm": 8, "item": 0.4})
    b = window(tmp_path / "b", {"mm": 8, "item": 4})
    (row,) = [one for one in compared(a, b).loop_tree if one.path == ("item",)]
    assert (row.presence, row.time.before, row.time.after) == (None, None, 4_005_000)
    assert drawn(a, b)["item"] == ("elsewhere", "item")
    figure = loop_changes(compared(a, b).loop_tree)
    assert figure is not None
    assert [one.told for one in figure.parts if one.label == "item"] == [
        "item: 4 ms an iteration in B; in A it is missing or too short to be told apart"
    ]


def test_a_function_is_the_same_one_after_its_line_and_folder_have_changed(
    tmp_path: Path,
) -> None:
    a = window(tmp_path / "a", {"mm": 8}, function="/old/training.py(10): train")
    b = window(tmp_path / "b", {"mm": 10}, function="/new/training.py(12): train")
    tree = {one.path: one for one in compared(a, b).loop_tree}
    assert {path: one.presence for path, one in tree.items()} == {
        (): "both",
        ("training.py: train",): "both",
        ("training.py: train", "mm"): "both",
    }
    assert tree["training.py: train",].own.change == -2 * MS
    assert tree["training.py: train", "mm"].time.change == 2 * MS


def test_recordings_that_hold_other_things_give_a_sentence_and_no_figure(tmp_path: Path) -> None:
    a = window(tmp_path / "a", {"mm": 8})
    b = window(tmp_path / "b", {"mm": 8}, function="training.py(1): train")
    found = compared(a, b)
    assert found.loop_tree == ()
    assert found.unknown_loop == (
        "The training loop's thread cannot be compared: B has Python functions, and A has none."
    )
    c = window(tmp_path / "c", {"mm": 8}, span="forward-backward")
    assert compared(c, a).unknown_loop == (
        "The training loop's thread cannot be compared: A has spans of phases, and B has none."
    )
    bare = TraceBuilder(0, 2).step(1, 0, 100 * MS).gpu(GEMM, 0, MS)
    bare.write(tmp_path / "d" / "rank-0.json")
    assert compared(a, tmp_path / "d").unknown_loop == (
        "What the training loop's thread did is unknown in B."
    )
    output = tmp_path / "compare.html"
    assert invoked("compare", a, b, "-o", output, "--jobs", "1").exit_code == 0
    assert 'id="loop-changes"' not in output.read_text()
    assert "B has Python functions, and A has none" in output.read_text()


def test_the_figure_draws_the_numbers_of_json(tmp_path: Path) -> None:
    a = window(tmp_path / "a", {"mm": 8, "norm": 5})
    b = window(tmp_path / "b", {"mm": 10, "norm": 5})
    output = tmp_path / "compare.html"
    assert invoked("compare", a, b, "-o", output, "--jobs", "1").exit_code == 0
    rows = json.loads(invoked("compare", a, b, "--json", "--jobs", "1").output)["loop_tree"]
    tree = {tuple(row["path"]): row for row in rows}
    assert list(tree) == [(), ("mm",), ("norm",)]
    assert tree["mm",]["time"]["change"] == 2 * MS
    thread = tree[()]["own"]
    widest = [max(one["before"], one["after"]) for one in
              (thread, tree["mm",]["time"], tree["norm",]["time"])]  # fmt: skip
    left, width = (round(100 * one / sum(widest), 2) for one in widest[:2])
    assert f'<i class="change-longer" style="left:{left}%;width:{width}%;top:0px"' in (
        output.read_text()
    )
