# SPDX-License-Identifier: Apache-2.0
"""The page's structure and numbers, without a browser."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from many_ranks import of_many
from page_reading import Page, read

from megatron.torch_trace import analyze
from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.analysis.results.run_record import find_run
from megatron.torch_trace.analysis.results.summary import summarise
from megatron.torch_trace.report import sentences
from megatron.torch_trace.report.html import ViewLinks, render_html
from megatron.torch_trace.wording import milliseconds, percent

EXAMPLES = Path(__file__).parents[2] / "examples" / "traces"
HOSTILE = "</script><img src=x onerror=document.title='hacked'>"


@pytest.fixture(scope="module")
def page(tp2pp2: Analysis) -> Page:
    return read(render_html(tp2pp2))


def test_the_sections_come_in_the_order_of_the_questions(page: Page) -> None:
    assert page.sections == [
        "breakdown",
        "findings",
        "over_time",
        "communication",
        "stragglers",
        "pipeline",
        "work",
        "idle_time",
        "host",
        "run",
        "notes",
        "left-out",
    ]


def test_a_section_that_would_be_empty_says_why_it_is_not_there(
    page: Page, spans: Analysis
) -> None:
    assert "neither spans of modules (--torch-profile-spans modules) nor stacks" in page.text
    found = read(render_html(spans))
    assert {"modules", "phases"} <= set(found.sections)
    assert "spans of modules" not in found.text


def test_no_two_elements_of_a_page_have_one_id(tp2pp2: Analysis, spans: Analysis) -> None:
    """On a narrow page the labels of a table's numbers are found by its id."""
    late = analyze(EXAMPLES / "late-ranks" / "iter-0000078-0000080", jobs=1)
    for one in (tp2pp2, spans, late):
        ids = read(render_html(one)).ids
        assert [name for name, times in Counter(ids).items() if times > 1] == []


def test_the_answer_is_that_of_the_text_report(tp2pp2: Analysis, page: Page) -> None:
    text = page.text.replace("\u00a0", " ")
    for sentence in (sentences.head(tp2pp2), *sentences.answer(tp2pp2)):
        assert sentence in text
    for finding in tp2pp2.findings:
        assert finding.title in text
        assert finding.advice.replace("`", "") in text


def test_the_first_screen_says_what_to_do_before_it_lists_the_ranks(tp2pp2: Analysis) -> None:
    text = read(render_html(tp2pp2)).text.replace("\u00a0", " ")
    first, ranks = tp2pp2.findings[0], text.index("Every rank, % of its window")
    assert text.index(first.title) < text.index(first.advice) < ranks
    assert text.index(f"All {len(tp2pp2.findings)} findings") < ranks


def test_what_is_for_information_only_is_not_the_first_thing_to_do(tp2pp2: Analysis) -> None:
    told = replace(tp2pp2.findings[0], severity="info")
    text = read(render_html(replace(tp2pp2, findings=(told,)))).text.replace("\u00a0", " ")
    assert text.index(told.title) > text.index("Every rank, % of its window")


def test_the_numbers_of_every_rank_are_those_of_the_analysis(tp2pp2: Analysis, page: Page) -> None:
    _, *rows = page.tables["ranks"]
    expected = []
    for rank in tp2pp2.ranks:
        parts = rank.breakdown
        assert parts is not None
        shares = (parts.compute, parts.exposed_communication, parts.exposed_memory, parts.idle,
                  rank.overlapped_communication_ns or 0)  # fmt: skip
        coordinates = f"tp{rank.coordinates['tp']} pp{rank.coordinates['pp']}"
        numbers = [percent(part / rank.window_ns) for part in shares]
        expected.append([str(rank.rank), coordinates, "", milliseconds(rank.window_ns), *numbers])
    assert rows == expected


def test_the_numbers_of_kernels_and_collectives_are_those_of_the_analysis(
    tp2pp2: Analysis, page: Page
) -> None:
    summary = tp2pp2.summary
    assert [row[3] for row in page.tables["kernels"][1:]] == [
        milliseconds(kernel.time_ns) for kernel in summary.kernels
    ]
    assert [row[4] for row in page.tables["collectives"][1:]] == [
        milliseconds(row.time_ns) for row in summary.communication
    ]


def test_a_marked_row_names_the_longest_call_of_the_analysis(tp2pp2: Analysis, page: Page) -> None:
    marked = {
        (int(mark["data-rank"]), int(mark["data-start"]), int(mark["data-duration"]))
        for mark in page.marks
    }
    for row in (*tp2pp2.summary.kernels, *tp2pp2.summary.communication):
        assert row.longest is not None
        assert (row.longest_rank, row.longest.start_ns, row.longest.duration_ns) in marked


def test_micro_batches_stand_over_their_time(spans: Analysis) -> None:
    marked = {int(mark["data-start"]) for mark in read(render_html(spans)).marks}
    for rank in spans.ranks:
        for row in rank.microbatches:
            for moment in (row.forward_on_gpu, row.backward_on_gpu):
                assert moment is None or moment.start_ns in marked


def test_nothing_is_loaded_from_anywhere(page: Page) -> None:
    assert [link for link in page.links if not link.startswith(("#", "data:,"))] == []
    assert len(page.scripts) == 1


def test_names_are_text_whatever_they_say(tp2pp2: Analysis) -> None:
    rank = tp2pp2.ranks[0]
    evil = [replace(one, name=f"{HOSTILE}{n}") for n, one in enumerate(rank.kernels)]
    evil_operators = [replace(one, operator=HOSTILE) for one in rank.operators[:1]]
    ranks = (replace(rank, kernels=tuple(evil), operators=tuple(evil_operators), file=HOSTILE,
                     device=HOSTILE, host_name=HOSTILE, argv=(HOSTILE,)),)  # fmt: skip
    findings = tuple(
        replace(one, title=HOSTILE, advice=f"`{HOSTILE}` {HOSTILE}") for one in tp2pp2.findings
    )
    html = render_html(replace(tp2pp2, ranks=ranks, summary=summarise(ranks), findings=findings))
    found = read(html)
    assert "img" not in found.tags
    assert len(found.scripts) == 1
    assert HOSTILE in found.text
    assert f"{HOSTILE}0" in "".join((found.text, *found.titles))


def test_the_page_of_view_has_what_it_links_to(tp2pp2: Analysis) -> None:
    html = render_html(
        tp2pp2, view=ViewLinks("/ui/", "/timeline.pftrace.gz", "/timeline", "/offsets")
    )
    found = read(html)
    assert 'data-ui="/ui/" data-timeline="/timeline.pftrace.gz" data-offsets="/offsets"' in html
    assert len(found.scripts) == 2


def test_a_page_of_eight_ranks_is_below_two_megabytes(tp2pp2: Analysis, spans: Analysis) -> None:
    for analysis in (tp2pp2, spans):
        assert len(render_html(of_many(analysis, 8)).encode()) < 2e6


def test_kernels_with_names_of_thousands_of_characters_do_not_fill_the_page(
    spans: Analysis,
) -> None:
    rank = spans.ranks[0]
    rows = tuple(
        replace(rank.kernels[0], name=f"kernel{n}<{'T, ' * 1000}>()", time_ns=10_000 - n)
        for n in range(1000)
    )
    ranks = (replace(rank, kernels=rows), *spans.ranks[1:])
    html = render_html(replace(spans, ranks=ranks, summary=summarise(ranks)))
    found = read(html)
    shown = len(found.tables["kernels"]) - 1
    assert len(html.encode()) < 2e6
    assert f"{len(summarise(ranks).kernels) - shown:,} more kernels are in" in found.text


def test_of_1024_ranks_none_is_missing_in_five_megabytes(tp2pp2: Analysis) -> None:
    html = render_html(of_many(tp2pp2, 1024))
    found = read(html)
    assert len(html.encode()) < 5e6
    assert [row[0] for row in found.tables["ranks"][1:]] == [str(n) for n in range(1024)]
    assert sum("rank " in title and ": compute" in title for title in found.titles) >= 1024
    assert [row[0] for row in found.tables["coordinates"][1:]] == [
        f"{dimension}{n}" for dimension, count in (("tp", 8), ("pp", 8), ("dp", 16))
        for n in range(count)
    ]  # fmt: skip
    assert "the other 992 have" in found.text


def test_the_run_tells_what_it_was(tp2pp2: Analysis, tmp_path: Path) -> None:
    window = tmp_path / "20261127-221810" / "iter-0000006"
    ranks = tuple(replace(one, file=str(window / f"rank-{one.rank}")) for one in tp2pp2.ranks)
    window.mkdir(parents=True)
    run = {"run": "20261127-221810", "argv": ["pretrain_gpt.py", "--x"], "world_size": 4,
           "arguments": {"hidden_size": 2048, "tensor_model_parallel_size": 2},
           "versions": {"torch": "2.11"}, "layout": {"tp": 2, "pp": 2}}  # fmt: skip
    (window.parent / "run.json").write_text(json.dumps(run))
    lines = [{"iteration": n, "gpu/power_w": 600.0 + n, "gpu/power_w/min": 1.0} for n in (5, 10)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (window.parent / "metrics.jsonl").write_text(text + '{"iteration": 1')
    analysis = replace(tp2pp2, ranks=ranks)
    record = find_run(analysis)
    assert record is not None
    assert [series.name for series in record.metrics] == ["gpu/power_w", "gpu/power_w/min"]
    found = read(render_html(analysis))
    assert "telemetry" in found.sections
    assert ["hidden_size", "2048"] in found.tables["arguments"]
    assert "pretrain_gpt.py --x" in found.text
    assert "power_w" in found.text
    assert "610 W" in found.text
    assert "1 of 3 lines cannot be read" in found.text


def test_each_stage_of_1024_ranks_has_one_line_for_its_bubble(tp2pp2: Analysis) -> None:
    found = read(render_html(of_many(tp2pp2, 1024)))
    assert [row[0] for row in found.tables["stages"][1:]] == [f"{n} of 8" for n in range(8)]
    assert (
        "Each row is the rank with the largest bubble of its stage and step; 1,016 more"
        in found.text
    )


def test_headings_that_need_it_are_explained_below_their_table(page: Page) -> None:
    assert (
        "exposed ms: the GPU computes nothing meanwhile; wait ms: time beyond the shortest"
        in page.text
    )


def test_steps_whose_names_would_overlap_are_named_where_there_is_room(tp2pp2: Analysis) -> None:
    ranks = []
    for rank in tp2pp2.ranks:
        step, length = rank.steps[0], rank.window_ns // 100
        steps = tuple(
            replace(step, step=n, start_ns=step.start_ns + n * length) for n in range(100)
        )
        ranks.append(replace(rank, steps=steps))
    figure = render_html(replace(tp2pp2, ranks=tuple(ranks))).split('<figure class="lanes">')[1]
    named = figure.split("</div></div>")[0].count("step ")
    assert 10 < named < 15


def test_a_rank_of_unknown_utilisation_is_unknown(tp2pp2: Analysis) -> None:
    why = (
        "9 of 10 launches have no kernel in the trace, so the trace does not say what the GPU did."
    )
    lost = replace(tp2pp2.ranks[0], breakdown=None, unknown=why, course=None,
                   overlapped_communication_ns=None)  # fmt: skip
    ranks = (lost, *tp2pp2.ranks[1:])
    found = read(render_html(replace(tp2pp2, ranks=ranks, summary=summarise(ranks))))
    first = found.tables["ranks"][1]
    assert first[2] == "unknown"
    assert first[4:] == ["unknown"] * 5
    assert why in found.text
