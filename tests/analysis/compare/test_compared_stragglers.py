# SPDX-License-Identifier: Apache-2.0
"""Late ranks and findings of two analyses beside each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from compared_windows import window

from megatron.torch_trace.analysis.communication.stragglers import Straggler
from megatron.torch_trace.analysis.compare.comparison import Lateness, compare
from megatron.torch_trace.analysis.results.analysis import Finding
from megatron.torch_trace.analysis.run.analyse import analyze


def late(rank: int, delay_ns: int, last: int, of: int, dimension: str | None) -> Straggler:
    kind = "allreduce" if dimension else None
    return Straggler(rank, of, last, 3 * delay_ns, delay_ns, 0, dimension, kind, of, None)


def test_a_rank_is_as_late_as_it_is_in_an_iteration_of_its_side(tmp_path: Path) -> None:
    two = analyze(window(tmp_path / "a", (4, 4)), jobs=1)
    four = analyze(window(tmp_path / "b", (4, 4, 4, 4)), jobs=1)
    a = replace(
        two,
        stragglers=(
            late(0, 800, 2, 8, "tp"), late(1, 100, 1, 8, "dp"), late(3, 900, 0, 0, None),
        ),
    )  # fmt: skip
    b = replace(
        four,
        stragglers=(late(0, 400, 3, 4, "dp"), late(1, 400, 1, 4, None), late(2, 80, 1, 4, "pp")),
    )
    assert compare(a, b).stragglers == (
        Lateness(0, 400, 100, 0.25, 0.75, "dp allreduce"),
        Lateness(1, 50, 100, 0.125, 0.25, "dp allreduce"),
        Lateness(2, None, 20, None, 0.25, "pp allreduce"),
        Lateness(3, 450, None, None, None, None),
    )


def finding(code: str, rank: int | None = None, share: float = 0.1) -> Finding:
    return Finding(code, "low", "", {} if rank is None else {"rank": rank}, "", share)


def test_another_rank_is_news_and_another_share_is_not(tmp_path: Path) -> None:
    analysis = analyze(window(tmp_path / "a"), jobs=1)
    a = replace(
        analysis, findings=(finding("straggler", 1), finding("barriers"), finding("old", 5))
    )
    b = replace(analysis, findings=(finding("barriers", share=0.4), finding("straggler", 2)))
    found = compare(a, b)
    assert [(one.code, one.evidence) for one in found.appeared] == [("straggler", {"rank": 2})]
    assert [(one.code, one.evidence) for one in found.vanished] == [
        ("straggler", {"rank": 1}),
        ("old", {"rank": 5}),
    ]
    assert (found.straggler_before, found.straggler_after) == (1, 2)
