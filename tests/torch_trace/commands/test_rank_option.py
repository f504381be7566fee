# SPDX-License-Identifier: Apache-2.0
"""`--rank` takes what `--torch-profile-ranks` takes of numbers: ranks, ranges, strides, lists."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import run
from trace_builder import GEMM, TraceBuilder


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("window")
    for rank in range(6):
        builder = TraceBuilder(rank, 6).step(5, 0, 1000)
        builder.gpu(GEMM, 10, 500, launch=5).write(folder / f"rank-{rank}.json")
    return folder


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["3"], [3]),
        (["1-3"], [1, 2, 3]),
        (["0-1,4"], [0, 1, 4]),
        (["0-5:2"], [0, 2, 4]),
        (["4", "0", "0-1"], [0, 1, 4]),
    ],
)
def test_ranks_may_be_ranges_and_lists(window: Path, words: list[str], expected: list[int]) -> None:
    options = [part for word in words for part in ("--rank", word)]
    ended = run("analyze", window, "--json", "--no-gains", "-j", 1, *options)
    assert [rank["rank"] for rank in json.loads(ended.stdout)["ranks"]] == expected


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("3-1", "--rank 3-1: the range 3-1 is empty; write it as 0-63."),
        ("0-4:0", "--rank 0-4:0: the range 0-4:0 is empty; write it as 0-63."),
        ("1,x", "--rank 1,x: 'x' is no rank and no range; write 3, 0-63,128 or 0-63:8."),
        ("-1", "--rank -1: '-1' is no rank and no range; write 3, 0-63,128 or 0-63:8."),
        ("1,", "--rank 1,: '' is no rank and no range; write 3, 0-63,128 or 0-63:8."),
        ("0-9999999", "--rank 0-9999999: a job has at most 1,048,576 ranks."),
        ("4-6", "--rank 6: there is no trace of this rank; there are 0, 1, 2, 3, 4, 5."),
    ],
)
def test_what_is_no_rank_is_one_sentence(window: Path, word: str, said: str) -> None:
    ended = run("analyze", window, "-j", 1, "--rank", word)
    assert (ended.returncode, ended.stderr.decode()) == (2, f"torch-trace: {said}\n")
