# SPDX-License-Identifier: Apache-2.0
"""What only follows from another finding stands behind it, and names it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from trace_builder import GEMM, TraceBuilder

from megatron.torch_trace.analysis.findings import by_gain
from megatron.torch_trace.analysis.findings.consequences import linked
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding
from megatron.torch_trace.analysis.run.analyse import analyze
from megatron.torch_trace.report.html import render_html
from megatron.torch_trace.report.markdown import render_markdown
from megatron.torch_trace.report.sentences import possible_gains
from megatron.torch_trace.report.text import render

MS = 1_000_000


def one_late(folder: Path, steps: int = 1) -> Analysis:
    """Rank 1 of two comes 0.4 ms late to each of four all-reduces of a step of 4 ms."""
    for rank in range(2):
        trace = TraceBuilder(rank, 2)
        for step in range(steps):
            trace.step(step + 1, step * 4 * MS, (step + 1) * 4 * MS)
        for number in range(4 * steps):
            start = number * MS + 400_000 * rank
            trace.gpu(GEMM, start + 100_000, start + 500_000, launch=start)
            members = {"Process Group Name": "dp", "Process Group Ranks": "[0, 1]"}
            trace.collective(start + 500_000, number * MS + 990_000, launch=start + 50, **members)
        trace.write(folder / f"rank-{rank}.json")
    return analyze(folder)


def finding(code: str, evidence: dict[str, Any] | None = None, gain_ns: int = 0) -> Finding:
    return Finding(code, "low", f"{code}.", evidence or {}, "", gain_ns=gain_ns, gain_error_ns=0)


def test_waiting_for_a_late_rank_follows_from_that_rank(tmp_path: Path) -> None:
    found = one_late(tmp_path).findings
    chain = [(one.name, one.cause) for one in found]
    assert chain[:2] == [
        ("straggler of rank 1", None),
        ("exposed_communication_dp", "straggler of rank 1"),
    ]


def test_a_card_of_the_page_and_the_terminal_hold_a_cause_and_what_follows(tmp_path: Path) -> None:
    analysis = one_late(tmp_path)
    page = render_html(analysis)
    inside = page.index("This causes: Data-parallel communication is exposed")
    assert page.index('id="finding-straggler-of-rank-1"') < inside
    assert "      This causes finding exposed_communication_dp:" in render(analysis)
    assert "\n  - This causes `exposed_communication_dp`:" in render_markdown(analysis)


def test_times_of_a_window_of_two_steps_are_told_by_iteration(tmp_path: Path) -> None:
    (late, *_) = one_late(tmp_path, steps=2).findings
    assert "Rank 0 waits 1.6 ms an iteration for rank 1 (3.2 ms in the window)" in late.title


def test_what_follows_stands_behind_its_cause_though_it_would_gain_more() -> None:
    late = finding("straggler", {"rank": 3}, gain_ns=5)
    other = finding("launch_bound", gain_ns=9)
    network = replace(finding("exposed_communication_dp", gain_ns=20), cause=late.name)
    assert by_gain([network, late, other]) == (other, late, network)


def test_a_cause_that_is_not_there_hides_nothing() -> None:
    network = replace(finding("exposed_communication_dp"), cause="straggler of rank 3")
    assert by_gain([network]) == (network,)


def test_short_kernels_sends_and_lopsided_stages_follow_from_what_they_are_part_of(
    tmp_path: Path,
) -> None:
    codes = ["tiny_kernels", "launch_bound", "exposed_communication_pp", "pipeline_bubble",
             "uneven_stages", "layer_imbalance"]  # fmt: skip
    evidence = {"cpu_idle_ns": {0: 1}}
    found = linked([finding(code, evidence) for code in codes], one_late(tmp_path))
    assert [one.cause for one in found] == [
        "launch_bound", None, "pipeline_bubble", None, "layer_imbalance", None
    ]  # fmt: skip


def test_a_late_rank_follows_from_its_data_loader(tmp_path: Path) -> None:
    late = finding("straggler", {"rank": 1, "late_because": "data"})
    loader = finding("data_loader", {"rank": 1})
    found = linked([late, loader], one_late(tmp_path))
    assert [one.cause for one in found] == ["data_loader of rank 1", None]


@pytest.mark.parametrize(
    ("exposed", "awaited", "first"), [(0.3, 0.1, 0), (0.1, 0.3, 1), (0.2, 0.2, 1)]
)
def test_of_exposed_copies_and_those_the_cpu_waits_for_the_smaller_stands_below_the_other(
    tmp_path: Path, exposed: float, awaited: float, first: int
) -> None:
    analysis = one_late(tmp_path)
    copies = replace(finding("memory_copies", gain_ns=900_000), share=exposed)
    pageable = replace(finding("pageable_copies", gain_ns=700_000), share=awaited)
    found = linked([copies, pageable], analysis)
    names = ["memory_copies", "pageable_copies"]
    top, below = names[first], names[1 - first]
    assert {one.name: one.cause for one in found} == {top: None, below: top}
    shown = replace(analysis, findings=by_gain(found))
    assert f"      Partly the same: finding {below}:" in render(shown)
    assert f"\n  - Partly the same: `{below}`:" in render_markdown(shown)
    assert f"Partly the same: {below}." in render_html(shown)
    # The first line and the figure of the iteration have one gain and not both.
    told = possible_gains(shown)[0]
    assert f"without `{top}`" in told
    assert below not in told
