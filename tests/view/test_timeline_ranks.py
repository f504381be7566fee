# SPDX-License-Identifier: Apache-2.0
"""Of very many ranks a timeline shows those that tell something, and says which."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from many_ranks import of_many

from megatron.torch_trace.analysis.results.analysis import Analysis, Finding
from megatron.torch_trace.analysis.run.analyse import analyze
from megatron.torch_trace.viewing.preparation import FAILED, Preparation
from megatron.torch_trace.viewing.timeline_ranks import MOST_RANKS, chosen, sentence

SAMPLES = Path(__file__).parents[1] / "data"
LATE = Finding("straggler", "high", "", {"rank": 77, "ranks": [77, 90], "waiting_ranks": [3]}, "")


@pytest.fixture(scope="module")
def many() -> Analysis:
    return replace(of_many(analyze(SAMPLES / "pp2-recompute-spans"), 128), findings=(LATE,))


def numbers(traces: list[Path]) -> list[int]:
    return [int(trace.name.split("-")[1].split(".")[0]) for trace in traces]


def test_stragglers_those_that_wait_and_one_of_each_kind_are_shown(many: Analysis) -> None:
    shown = numbers(chosen([Path(rank.file) for rank in many.ranks], many))
    assert {3, 77, 90} <= set(shown)
    assert {rank.coordinates["pp"] for rank in many.ranks if rank.rank in shown} == set(range(8))
    assert len(shown) <= MOST_RANKS


def test_few_ranks_are_all_shown(many: Analysis) -> None:
    traces = [Path(rank.file) for rank in many.ranks][:MOST_RANKS]
    assert chosen(traces, many) == traces


def test_without_an_analysis_ranks_at_equal_distances_are_shown(many: Analysis) -> None:
    shown = numbers(chosen([Path(rank.file) for rank in many.ranks], None))
    assert len(shown) == MOST_RANKS
    assert (shown[0], shown[-1]) == (0, 127)


def test_the_sentence_says_which_and_how_to_see_others() -> None:
    assert sentence([0, 1, 77], 512).startswith("The timeline shows 3 of 512 ranks (0-1, 77):")
    assert "--rank R" in sentence([0, 1, 77], 512)


def test_of_traces_that_are_gone_the_report_opens_without_a_timeline(tmp_path: Path) -> None:
    gone = tmp_path / "rank-0.json"
    preparation = Preparation([gone], whole_folder=True, links=None)
    preparation._convert()
    assert preparation.timeline.state == FAILED
    assert "the report is of their kept analyses" in preparation.timeline.message
