# SPDX-License-Identifier: Apache-2.0
"""Figures of the page: what is drawn are the numbers of `analyze --json`."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from analyze_document import document
from command_line import invoked
from many_ranks import of_many

from megatron.torch_trace.analysis.gpu_work.mfu import Mfu
from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.analysis.results.path_part import PathPart
from megatron.torch_trace.analysis.timeline.moment import Moment
from megatron.torch_trace.report.figures.arrival_fan import arrival_fan
from megatron.torch_trace.report.figures.heat_map import PARTS, heat_figure
from megatron.torch_trace.report.figures.link_speeds import link_of
from megatron.torch_trace.report.figures.message_sizes import message_figure
from megatron.torch_trace.report.figures.module_icicle import module_icicle
from megatron.torch_trace.report.figures.module_ladder import module_ladder
from megatron.torch_trace.report.figures.path_strip import path_strip
from megatron.torch_trace.report.figures.peak_ladder import peak_ladder
from megatron.torch_trace.report.figures.schedule import schedule_figure
from megatron.torch_trace.report.figures.time_budget import time_budget
from megatron.torch_trace.report.html import render_html
from megatron.torch_trace.report.module_nodes import module_nodes
from megatron.torch_trace.report.tables import At

SLEEPER = Path(__file__).parents[1] / "data" / "analysis" / "dp4-rank2-slow"


def with_gain(analysis: Analysis, code: str, gain_ns: int) -> Analysis:
    found = [
        replace(one, gain_ns=gain_ns, gain_error_ns=1000) if one.code == code else one
        for one in analysis.findings
    ]
    return replace(analysis, findings=tuple(found))


def test_the_time_budget_goes_from_compute_over_gains_to_the_iteration(tp2pp2: Analysis) -> None:
    analysis = with_gain(tp2pp2, "launch_bound", 5_000_000)
    summary = document(analysis)["summary"]
    page = render_html(analysis)
    drawn = re.findall(r'<tr data-ns="(\d+)" data-kind="(\w+)">', page)
    times = {kind: int(ns) for ns, kind in drawn}
    assert [kind for _, kind in drawn] == ["compute", "gain", "rest", "iteration"]
    assert times["iteration"] == round(summary["iteration_ns"])
    assert times["compute"] == round(summary["shares"]["compute"] * summary["iteration_ns"])
    assert times["gain"] == 5_000_000
    assert times["compute"] + times["gain"] + times["rest"] == times["iteration"]
    assert 'href="#finding-launch_bound"' in page
    assert 'id="finding-launch_bound"' in page


def test_gains_that_overlap_end_with_the_iteration(tp2pp2: Analysis) -> None:
    iteration = round(tp2pp2.summary.iteration_ns or 0)
    analysis = with_gain(tp2pp2, "launch_bound", iteration)
    *_, gain, whole = time_budget(analysis)
    assert (gain.kind, whole.kind) == ("gain", "iteration")
    assert gain.left + gain.width <= 100.01


def test_without_a_gain_there_is_no_budget(tp2pp2: Analysis) -> None:
    assert time_budget(tp2pp2) == []
    assert 'id="time-budget"' not in render_html(tp2pp2)


def test_a_report_from_the_command_has_the_gains_of_analyze(tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    assert invoked("report", SLEEPER, "-o", output).exit_code == 0
    page = output.read_text()
    assert 'href="#finding-straggler-of-rank-2"' in page
    assert "the iteration would be 48.2" in page


def test_every_rank_has_a_row_of_the_heat_map_and_every_slice_its_largest_part(
    tp2pp2: Analysis,
) -> None:
    figure = heat_figure(tp2pp2)
    assert figure is not None
    rows = [row.split("|") for row in figure.rows.split(";")]
    assert [row[0] for row in rows] == ["0", "1", "2", "3"]
    for row, rank in zip(rows, tp2pp2.ranks, strict=True):
        course = rank.course
        assert course is not None
        assert len(row[-1]) == len(course.compute)
        largest = (ord(row[-1][0]) - ord("A")) // 6
        length = course.edges_ns[1] - course.edges_ns[0]
        times = [getattr(course, part)[0] for part in PARTS[:-1]]
        times.append(length - sum(times))
        assert times[largest] == max(times)


def test_the_heat_map_can_be_ordered_by_every_dimension_that_is_used_and_by_host(
    spans: Analysis,
) -> None:
    figure = heat_figure(of_many(spans, 128))
    assert figure is not None
    assert figure.orders == ("rank", "dp", "pp", "tp", "host", "idle")
    assert figure.ranks == 128


def test_the_schedule_has_the_micro_batches_of_the_document_and_the_ideal_below(
    spans: Analysis,
) -> None:
    figure = schedule_figure(spans)
    assert figure is not None
    assert [row.label for row in figure.rows] == ["stage 0", "stage 1"]
    for row, rank in zip(figure.rows, document(spans)["ranks"], strict=True):
        recorded = [one for one in rank["microbatches"] if one["step"] == figure.step]
        assert len(row.blocks) == len(row.ideal) == 2 * len(recorded)
        starts = {(block.direction, block.at.start) for block in row.blocks if block.at}
        assert ("forward", recorded[0]["forward_on_gpu"]["start_ns"]) in starts
    assert 0 < figure.ideal_ns <= figure.recorded_ns


def test_a_schedule_without_spans_has_the_passes_of_the_document(tp2pp2: Analysis) -> None:
    figure = schedule_figure(tp2pp2)
    assert figure is not None
    lowest = [document(tp2pp2)["ranks"][number] for number in (0, 2)]
    for row, rank in zip(figure.rows, lowest, strict=True):
        assert [
            (one.told.split(":")[0], one.at and (one.at.start, one.at.duration))
            for one in row.blocks
        ] == [
            (
                f"{one['direction']} {one['number']}",
                (one["on_gpu"]["start_ns"], one["on_gpu"]["duration_ns"]),
            )
            for one in rank["passes"]
        ]
        assert len(row.ideal) == len(row.blocks) == 16
    assert "The trace has no spans of phases: threads that launch tell" in figure.said
    assert figure.said in render_html(tp2pp2)


def test_passes_whose_micro_batches_are_unknown_are_drawn_without_numbers_and_ideal(
    tp2pp2: Analysis,
) -> None:
    unnumbered = [
        replace(rank, passes=tuple(replace(one, number=None) for one in rank.passes))
        for rank in tp2pp2.ranks
    ]
    analysis = replace(tp2pp2, ranks=tuple(unnumbered))
    figure = schedule_figure(analysis)
    assert figure is not None
    assert [(len(row.blocks), row.ideal) for row in figure.rows] == [(16, ()), (16, ())]
    assert {block.label for row in figure.rows for block in row.blocks} == {""}
    assert "The blocks have no numbers" in figure.said
    assert "ghost" not in render_html(analysis).split('id="schedule"')[1].split("</figure>")[0]


def test_a_stage_without_a_trace_makes_no_schedule(spans: Analysis) -> None:
    assert schedule_figure(replace(spans, ranks=spans.ranks[1:])) is None


def test_points_of_messages_are_lines_of_the_table_whose_waiting_is_known(
    tp2pp2: Analysis,
) -> None:
    figure = message_figure(tp2pp2)
    assert figure is not None
    known = [
        row
        for row in document(tp2pp2)["summary"]["communication"]
        if row["bytes"] and row["busbw_gbps"] and row["wait_ns"] is not None
    ]
    assert [(one.bytes, one.busbw_gbps) for one in figure.points] == [
        (row["bytes"] / row["calls"], row["busbw_gbps"]) for row in known
    ]
    assert [one.words for one in figure.links] == ["NVLink 4: 450 GB/s"]


@pytest.mark.parametrize(
    ("device", "gbps"),
    [("NVIDIA A100-SXM4-80GB", 300), ("NVIDIA A800-SXM4", 200), ("NVIDIA H800", 200),
     ("NVIDIA B200", 900), ("NVIDIA L4", None), (None, None)],
)  # fmt: skip
def test_links_are_known_by_the_name_of_the_gpu(device: str | None, gbps: int | None) -> None:
    link = link_of(device)
    assert (link and link.gbps) == gbps


def test_the_ladder_ends_with_the_mfu_of_the_document(tp2pp2: Analysis) -> None:
    iteration = tp2pp2.summary.iteration_ns or 0
    # Few enough FLOPs that no rung is above the peak.
    flops = 0.01 * 989.4e12 * 4 * iteration * 1e-9
    mfu = Mfu(0.01, None, flops, "trace", iteration, 4, 989.4)
    rungs = peak_ladder(replace(tp2pp2, mfu=mfu))
    shares = [one.share for one in rungs]
    assert rungs[-1].share == pytest.approx(0.01)
    assert shares == sorted(shares, reverse=True)
    assert peak_ladder(tp2pp2) == []


def test_the_arrival_fan_is_the_call_of_the_document_with_most_waiting(tp2pp2: Analysis) -> None:
    fan = arrival_fan(tp2pp2)
    call = document(tp2pp2)["worst_call"]
    assert fan is not None
    assert [(row.late_ns, row.wait_ns) for row in fan.rows] == [
        (one["late_ns"], one["wait_ns"]) for one in call["arrivals"]
    ]
    assert call["arrivals"][-1]["late_ns"] == 0
    assert call["arrivals"][0]["wait_ns"] == 0
    assert 'id="arrival-fan"' in render_html(tp2pp2)
    assert arrival_fan(replace(tp2pp2, worst_call=None)) is None


def test_the_critical_path_is_a_strip_of_its_parts(tp2pp2: Analysis) -> None:
    first = PathPart(2, "cpu", "forward 1", 30, longest=Moment(7, 20))
    parts = (first, PathPart(0, "communication", "dp allreduce", 10))
    analysis = replace(tp2pp2, critical_path=parts)
    strip = path_strip(analysis)
    assert strip is not None
    assert [(one.left, one.width, one.kind) for one in strip.parts] == [
        (0, 75, "cpu"), (75, 25, "communication")
    ]  # fmt: skip
    assert [share for _, _, share in strip.shares] == ["75 %", "25 %"]
    assert [one.at for one in strip.parts] == [At(2, 7, 20), None]
    assert 'data-rank="2" data-start="7" data-duration="20">forward 1' in render_html(analysis)
    written = document(analysis)["critical_path"]
    assert [one["time_ns"] for one in written] == [30, 10]
    assert [one["longest"] for one in written] == [{"start_ns": 7, "duration_ns": 20}, None]
    assert path_strip(tp2pp2) is None


def test_modules_are_an_icicle_as_wide_as_their_work(spans: Analysis) -> None:
    rank = spans.ranks[0]
    figure = module_icicle(rank, "rank 0", 1)
    assert figure is not None
    whole = document(spans)["ranks"][0]["module_account"]["gpu_ns"]
    roots = [node for node in module_nodes(rank.modules) if node.total_ns]
    (first, *_) = figure.parts
    assert first.depth == 0
    assert first.width == pytest.approx(100 * roots[0].total_ns / whole, abs=0.01)
    # No part stands out of the module above it.
    for above, below in pairwise(figure.parts):
        if below.depth > above.depth:
            assert above.left <= below.left
            assert below.left + below.width <= above.left + above.width + 0.02
    assert module_icicle(replace(rank, modules=()), "rank 0", 1) is None


def test_classes_of_modules_stand_by_their_flops_with_the_peak_share_of_the_document(
    spans: Analysis,
) -> None:
    figure = module_ladder(spans.ranks[0], "rank 0, stage 0", 1)
    assert figure is not None
    passes = ("flops", "backward_flops", "recompute_flops")
    known = [
        (sum(row[of] for of in passes), row["peak_share"], row["type"])
        for row in document(spans)["ranks"][0]["module_classes"]
        if row["peak_share"]
    ]
    known.sort(key=lambda one: -one[0])
    assert [(one.share, one.label) for one in figure.rungs] == [one[1:] for one in known]
    assert figure.rungs[0].told == "7.7 TFLOP, 120 TFLOP/s, 12 %"
    assert figure.rest == 0
    assert figure.caption in render_html(spans)


def test_without_a_known_peak_there_is_no_ladder_of_modules(spans: Analysis) -> None:
    rank = spans.ranks[0]
    unknown = tuple(replace(row, peak_share=None) for row in rank.module_classes)
    assert module_ladder(replace(rank, module_classes=unknown), "rank 0", 1) is None


def test_of_1024_ranks_the_page_stays_below_three_megabytes(spans: Analysis) -> None:
    assert len(render_html(of_many(spans, 1024)).encode()) < 3_000_000


def test_coordinates_begin_with_the_dimension_that_differs_most(spans: Analysis) -> None:
    page = render_html(of_many(spans, 128))
    table = page[page.index('id="coordinates"') :]
    labels = re.findall(r"<td>(tp|pp|dp)\d", table[: table.index("</table>")])
    assert labels[0] in ("tp", "pp")
