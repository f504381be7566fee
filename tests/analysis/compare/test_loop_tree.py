# SPDX-License-Identifier: Apache-2.0
"""Paths of the training loop's thread on both sides: new, gone, or only too short."""

from __future__ import annotations

from dataclasses import replace

import pytest
from compared_windows import window

from megatron.torch_trace.analysis.compare.loop_tree import LoopDifference, loop_tree
from megatron.torch_trace.analysis.host.loop_paths import MOST_ROWS, LoopPath
from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.analysis.run.analyse import analyze

Rows = dict[str, int]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """Two ranks, two steps."""
    return analyze(window(tmp_path_factory.mktemp("recorded"), (4, 4)), jobs=1)


def side(analysis: Analysis, *ranks: Rows, others: int = 0, kind: str = "operator") -> Analysis:
    """The ranks with these rows on the thread, ns in the window of two steps.

    Args:
        others: how many paths are too short for rows of their own, on each rank.
        kind: of the rows.
    """
    results = []
    for result, rows in zip(analysis.ranks, ranks, strict=True):
        thread = LoopPath(0, None, "thread", "", 1, 20_000, 20_000, others=others)
        paths = [
            LoopPath(number, 0, kind, name, 2, time, time)
            for number, (name, time) in enumerate(rows.items(), 1)
        ]
        results.append(replace(result, host=replace(result.host, loop_paths=(thread, *paths))))
    return replace(analysis, ranks=tuple(results))


def presences(a: Analysis, b: Analysis) -> dict[str, str | None]:
    return {one.path[0]: one.presence for one in loop_tree(a, b) if one.path}


def test_what_only_one_side_has_is_new_or_gone(recorded: Analysis) -> None:
    a = side(recorded, {"mm": 800, "old": 40}, {"mm": 800, "old": 60})
    b = side(recorded, {"mm": 800, "fused": 600}, {"mm": 800, "fused": 600})
    assert presences(a, b) == {"mm": "both", "fused": "new", "old": "gone"}
    assert presences(b, a) == {"mm": "both", "fused": "gone", "old": "new"}


def test_where_short_paths_were_put_together_nobody_knows(recorded: Analysis) -> None:
    a = side(recorded, {"mm": 800}, {"mm": 800}, others=3)
    b = side(recorded, {"mm": 800, "fused": 600}, {"mm": 800, "fused": 600})
    assert presences(a, b) == {"mm": "both", "fused": None}
    one = replace(a, ranks=(a.ranks[0], side(recorded, {"mm": 800}, {"mm": 800}).ranks[1]))
    assert presences(one, b) == {"mm": "both", "fused": None}


def tree(a: Analysis, b: Analysis) -> dict[str, LoopDifference]:
    return {one.path[0] if one.path else "": one for one in loop_tree(a, b)}


def test_times_are_for_an_iteration_and_a_rank_that_lacks_a_path_has_none_of_it(
    recorded: Analysis,
) -> None:
    a = side(recorded, {"mm": 800, "item": 40}, {"mm": 400})
    b = side(recorded, {"mm": 800}, {"mm": 600})
    found = tree(a, b)
    assert (found["mm"].time.before, found["mm"].time.after) == (300, 350)
    assert (found["mm"].calls.before, found[""].own.after) == (1, 10_000)
    assert (found["item"].time.before, found["item"].time.after) == (10, None)
    # A rank that may only have too short a one does not count.
    short = side(recorded, {"mm": 800, "item": 40}, {"mm": 400}, others=1)
    assert tree(short, b)["item"].time.before == 20


def test_the_longest_paths_of_either_side_are_shown(recorded: Analysis) -> None:
    many = {f"path{number:04}": 10_000 - number for number in range(MOST_ROWS)}
    a, b = side(recorded, many, many), side(recorded, {"last": 3}, {"last": 9_999_999})
    names = [one.path for one in loop_tree(a, b)]
    assert len(names) == MOST_ROWS
    assert names[:3] == [("last",), (), ("path0000",)]
    again = [one.path for one in loop_tree(b, a)]
    assert again == names


def test_only_functions_lose_their_folders_and_lines(recorded: Analysis) -> None:
    name = "/a/train.py(7): step"
    functions = side(recorded, {name: 100}, {name: 100}, kind="python")
    operators = side(recorded, {name: 100}, {name: 100})
    assert list(tree(functions, functions)) == ["", "train.py: step"]
    assert list(tree(operators, operators)) == ["", name]
