# SPDX-License-Identifier: Apache-2.0
"""Ranks below each other in figures: on one clock, whatever a trace says of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from trace_builder import GEMM, TraceBuilder

from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.analysis.run.analyse import analyze
from megatron.torch_trace.report.html.page import render_html
from megatron.torch_trace.report.timebase import shifts_of

YEARS = 1_790_857_026_000_000_000


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """Three ranks without a collective, so that nothing aligns their clocks."""
    folder = tmp_path_factory.mktemp("window")
    for rank in range(3):
        builder = TraceBuilder(rank, 3).step(5, 0, 1000)
        builder.gpu(GEMM, 10, 500, launch=5).write(folder / f"rank-{rank}.json")
    return analyze(folder)


def with_bases(analysis: Analysis, *bases: int) -> Analysis:
    pairs = zip(analysis.ranks, bases, strict=True)
    return replace(analysis, ranks=tuple(replace(rank, base_ns=base) for rank, base in pairs))


def test_bases_that_are_close_stay_apart(analysis: Analysis) -> None:
    found = with_bases(analysis, YEARS + 5_000, YEARS, YEARS + 7)
    assert shifts_of(found) == {0: 5_000, 1: 0, 2: 7}


@pytest.mark.parametrize("base", [0, -YEARS, (1 << 63) - 1])
def test_a_rank_on_another_clock_begins_with_the_others(analysis: Analysis, base: int) -> None:
    found = with_bases(analysis, base, YEARS, YEARS + 7)
    assert shifts_of(found) in ({0: 0, 1: 0, 2: 7}, {0: 7, 1: 0, 2: 7})


@pytest.mark.parametrize("base", [0, -YEARS])
def test_a_page_of_ranks_on_other_clocks_is_as_large_as_any(analysis: Analysis, base: int) -> None:
    usual = render_html(with_bases(analysis, YEARS, YEARS, YEARS))
    page = render_html(with_bases(analysis, base, YEARS, YEARS))
    assert abs(len(page) - len(usual)) < 1_000
