# SPDX-License-Identifier: Apache-2.0
"""Recorded traces, converted and loaded by Perfetto: it has every slice and arrow of the file."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from decimal import Decimal
from pathlib import Path

import pytest
from trace_processor import ask, needs_perfetto

from megatron.torch_trace import analyze
from megatron.torch_trace.perfetto import convert

SAMPLES = Path(__file__).parents[1] / "data"
ERRORS = "select name, sum(value) from stats where value > 0 and severity <> 'info' group by 1"
BY_CATEGORY = "select category, count(*), sum(dur) from slice group by 1 order by 1"
BY_RANK = """
    select substr(coalesce(track.name, thread.name), 1, 7), category, count(*), sum(slice.dur)
    from slice join track on slice.track_id = track.id
    left join thread_track on thread_track.id = track.id left join thread using (utid)
    group by 1, 2"""
ARROWS = "select count(*) from flow"

Sums = dict[tuple[str, str | None], tuple[int, int]]


def written(trace: Path, rank: str) -> tuple[Sums, int]:
    """Slices and instants by category with the ns they last, and arrows with two ends."""
    events = json.loads(gzip.decompress(trace.read_bytes()), parse_float=Decimal)["traceEvents"]
    count: dict[str | None, int] = defaultdict(int)
    time: dict[str | None, int] = defaultdict(int)
    starts = {(e["cat"], e["id"]) for e in events if e["ph"] == "s"}
    for event in events:
        if event["ph"] in ("X", "i"):
            count[event.get("cat")] += 1
            time[event.get("cat")] += int(event.get("dur", 0) * 1000)
    arrows = sum(e["ph"] == "f" and (e["cat"], e["id"]) in starts for e in events)
    return {(rank, cat): (count[cat], time[cat]) for cat in count}, arrows


@needs_perfetto
@pytest.mark.parametrize("folder", ["tp2pp2-stack", pytest.param("tp2pp2", marks=pytest.mark.slow)])
def test_perfetto_finds_every_slice_and_arrow_of_every_rank(folder: str, tmp_path: Path) -> None:
    traces = sorted((SAMPLES / folder).glob("*.json.gz"))
    output = tmp_path / "all.pftrace.gz"
    convert(traces, output, args="all")
    expected: Sums = {}
    arrows = 0
    for number, trace in enumerate(traces):
        sums, some = written(trace, f"rank 0{number}")
        expected |= sums
        arrows += some
    by_rank, [[flows]], errors, [[first, day]] = ask(
        output, BY_RANK, ARROWS, ERRORS, "select min(ts), substr(abs_time_str(0), 1, 10) from slice"
    )
    assert {(rank, cat): (count, ns) for rank, cat, count, ns in by_rank} == expected
    assert (flows, errors, first) == (arrows, [], 0)
    assert day == "2026-11-27"  # when these traces were recorded


@needs_perfetto
def test_a_trace_of_which_perfetto_loses_nothing_is_the_same_converted(tmp_path: Path) -> None:
    packed = SAMPLES / "analysis" / "dp4" / "rank-0.pt.trace.json.gz"
    trace = tmp_path / "rank-0.json"
    trace.write_bytes(gzip.decompress(packed.read_bytes()))
    output = tmp_path / "one.pftrace"
    convert(trace, output, args="all")
    # Nested as it was, too: depth is what Perfetto makes of begins and ends.
    depths = """
        select slice.name, depth, count(*), sum(dur) from slice
        where category in ('cpu_op', 'cuda_runtime', 'cuda_driver', 'user_annotation')
        group by 1, 2 order by 1, 2"""
    kernels = """
        select slice.name, dur, string_value from slice join args using (arg_set_id)
        where category = 'kernel' and key = '{}.Collective name' order by ts"""
    raw = ask(trace, BY_CATEGORY, ARROWS, ERRORS, depths, kernels.format("args"))
    assert ask(output, BY_CATEGORY, ARROWS, ERRORS, depths, kernels.format("debug")) == raw
    assert len(raw[4]) > 10


def test_ranks_are_aligned_as_an_analysis_aligns_them(tmp_path: Path) -> None:
    traces = sorted((SAMPLES / "tp2pp2").glob("*.json.gz"))
    result = convert(traces, tmp_path / "all.pftrace.gz", args="none")
    analysis = analyze(traces)
    assert result.clock_ns == {clock.rank: clock.offset_ns for clock in analysis.clocks}
    # Steps are where the analysis says, moved by the offset; no rank begins before 0.
    starts = [r.steps[0].start_ns + result.offset_ns[r.rank] for r in analysis.ranks]
    assert min(starts) > 0
    assert max(starts) < 20_000_000
