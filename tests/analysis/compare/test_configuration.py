# SPDX-License-Identifier: Apache-2.0
"""What differs of two configurations, and what only one side tells."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from compared_windows import MS, comparison, window
from trace_builder import GEMM, TraceBuilder

from megatron.torch_trace.analysis.compare.configuration import Change, flags_of


@pytest.mark.parametrize(
    ("argv", "flags"),
    [
        (["train.py", "--a", "1", "2", "--b"], {"--a": "1 2", "--b": ""}),
        (["--a", "--", "2", "-x"], {"--a": "-- 2 -x"}),
        (["--", "2"], {}),
        (["--a=b=c", "--a", "last"], {"--a": "last"}),
    ],
)
def test_words_behind_a_flag_are_its_value(argv: list[str], flags: dict[str, str]) -> None:
    assert flags_of(argv) == flags


def test_flags_are_compared_only_if_both_sides_tell_them(tmp_path: Path) -> None:
    a = window(tmp_path / "a", argv=["train.py", "--bf16"])
    found = comparison(a, window(tmp_path / "b")).configuration
    assert (found.changes, found.not_recorded) == ((), ("B",))


def test_an_argument_that_a_flag_has_set_is_told_by_the_flag(tmp_path: Path) -> None:
    windows = []
    for size, eps in ((8, 1), (16, 2)):
        folder = tmp_path / f"run-{size}"
        windows.append(window(folder / "iter-0000005"))
        run = {
            "argv": ["train.py", "--hidden-size", str(size)],
            "arguments": {"hidden_size": size, "eps": eps, "local_rank": size},
        }
        (folder / "run.json").write_text(json.dumps(run))
    assert comparison(*windows).configuration.changes == (
        Change("flag", "--hidden-size", "8", "16"),
        Change("argument", "eps", "1", "2"),
    )


def placed(folder: Path, places: list[dict[str, int]], *, world: int = 2) -> Path:
    """Ranks at these coordinates."""
    for rank, coordinates in enumerate(places):
        trace = TraceBuilder(rank, world, own={"coordinates": coordinates})
        trace.step(1, 0, 10 * MS).gpu(GEMM, MS, 2 * MS, launch=100)
        trace.write(folder / f"rank-{rank}.json")
    return folder


def test_sizes_of_dimensions_are_known_where_all_ranks_are_recorded(tmp_path: Path) -> None:
    a = placed(tmp_path / "a", [{"tp": 0, "dp": 0}, {"tp": 1, "dp": 0}])
    b = placed(tmp_path / "b", [{"tp": 0, "dp": 0}, {"tp": 0, "dp": 1}])
    assert comparison(a, b).configuration.changes == (
        Change("topology", "dp size", "1", "2"),
        Change("topology", "tp size", "2", "1"),
    )
    part = placed(tmp_path / "part", [{"tp": 0, "dp": 0}])
    assert comparison(a, part).configuration.changes == ()
    assert comparison(part, a).configuration.changes == ()
