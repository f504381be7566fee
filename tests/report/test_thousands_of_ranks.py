# SPDX-License-Identifier: Apache-2.0
"""The page of more ranks than a page has room for."""

from __future__ import annotations

from dataclasses import replace

from many_ranks import of_many

from megatron.torch_trace.analysis.results.analysis import Analysis, Finding
from megatron.torch_trace.analysis.results.shown_ranks import shown_ranks
from megatron.torch_trace.report.figures.heat_map import heat_figure
from megatron.torch_trace.report.html import render_html
from megatron.torch_trace.report.text import render as render_text


def test_of_ranks_without_number_the_page_shows_those_that_matter_and_some_of_the_others(
    spans: Analysis,
) -> None:
    many = of_many(spans, 4000)
    late = Finding("straggler", "high", "Rank 1357 is late.", {"rank": 1357}, "Look there.", 0.2)
    many = replace(many, findings=(late,))
    html = render_html(many)
    shown = [rank.rank for rank in shown_ranks(many)]
    assert len(html.encode()) < 3_500_000
    assert len(shown) == len({*shown}) == 1024
    assert {1357, *many.summary.extremes} <= {*shown}
    assert {rank.coordinates["dp"] for rank in many.ranks} == {
        many.ranks[number].coordinates["dp"] for number in shown
    }
    assert "The page shows 1,024 of 4,000 ranks" in html
    assert html.count("2,976 more ranks are in analyze --json.") == 2
    figure = heat_figure(many)
    assert figure is not None
    assert (figure.ranks, figure.more) == (1024, 2976)
    assert "1,024 ranks over time, of 4,000" in html
    assert "shows 3,984 more ranks." in render_text(many)
