# SPDX-License-Identifier: Apache-2.0
"""Columns of small traces, event by event: whole tables are compared."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import msgspec
import numpy as np
import pytest
from trace_builder import (
    annotation,
    arrow,
    collective_args,
    counter,
    event,
    instant,
    kernel,
    launch,
    metadata,
    op,
    text,
    write_rank,
)
from trace_builder import write as write_text

from megatron.torch_trace.analysis.timeline.activity import read_activity
from megatron.torch_trace.columns.activity_tables import (
    CODES,
    COLUMNS,
    GPU,
    OP,
    communication_tables,
)
from megatron.torch_trace.columns.arguments import CallArgs, SlimEventWithArgs, arguments, numbers
from megatron.torch_trace.columns.builder import ColumnBuilder
from megatron.torch_trace.columns.intervals import ints
from megatron.torch_trace.columns.joined_columns import JoinedColumns
from megatron.torch_trace.columns.slice_table import read_table
from megatron.torch_trace.columns.true_times import as_intervals, mend, nested_order
from megatron.torch_trace.reader import Trace

YEAR = 365 * 24 * 3600 * 10**9


def write(folder: Path, *events: str) -> Path:
    return write_text(folder / "rank-3.json", text(*events))


def test_a_number_that_64_bits_cannot_hold_is_none() -> None:
    least, largest = -(1 << 63), (1 << 63) - 1
    given = [5, None, largest, least, largest + 1, least - 1]
    found = numbers(given, -1)
    assert (found.tolist(), found.dtype) == ([5, -1, largest, least, -1, -1], np.int64)
    assert numbers([7, None], -2).tolist() == [7, -2]


def test_collectives_are_rows_of_their_own_and_what_is_none_has_none(tmp_path: Path) -> None:
    args = collective_args("allreduce", "dp") | {"Seq": 9}
    path = write(
        tmp_path,
        launch(1000, 2000, 1),
        kernel("gemm", 2000, 3000, 1),
        kernel("ncclDevKernel_AllReduce", 3000, 4000, 2, **args),
        kernel("ncclDevKernel_AllReduce", 4000, 5000, 3, **args),
    )
    table = read_table(path)
    assert table.slices["args"].to_list() == [None, None, 0, 0]
    assert table.collectives.to_dicts() == [
        {
            "collective": "allreduce",
            "in_nelems": 1000,
            "out_nelems": 1000,
            "group_size": 2,
            "dtype": "BFloat16",
            "group_name": "dp",
            "group_description": "DATA_PARALLEL_GROUP_WITH_CP",
            "group_ranks": "[0, 1]",
            "in_split": None,
            "out_split": None,
            "seq": 9,
            "src_rank": None,
            "dst_rank": None,
        }
    ]


def test_what_is_no_slice_changes_nothing_whatever_it_looks_like(tmp_path: Path) -> None:
    launches, work = launch(1000, 2000, 1), kernel("gemm", 2000, 3000, 1)
    slices = [op("aten::mm", 500, 2500), launches, work]
    alone = read_activity(write(tmp_path, *slices))
    others = [
        *arrow(1, launches, work),
        instant("Record Window End", 9000),
        counter("GPU 0 Utilization", 1000, value=5),
        metadata("process_name", 42, 0, name="python"),
    ]
    odd = [
        event("of no phase that is known", 1000, None, ph="?", cat="cpu_op"),
        '{"ph": 7, "cat": "cpu_op", "name": "of a phase that is no text", "pid": 1, "ts": 1}',
        '{"cat": "cpu_op", "name": "of no phase", "pid": 42, "tid": 42, "ts": 1, "dur": 1}',
        '{"ph": "s", "id": {}, "ts": [], "cat": 5}',
    ]
    for more in ([], *([one] for one in odd), odd):
        # In this order: a block begins with a slice, and with an arrow.
        for events in ([*slices, *others, *more], [*others, *slices, *more]):
            found = read_activity(write(tmp_path, *events))
            assert (found.names, found.tracks) == (alone.names, alone.tracks)
            assert found.damage == alone.damage
            for table in ("gpu", "calls", "ops"):
                columns, wanted = (asdict(getattr(one, table)) for one in (found, alone))
                assert {name: column.tolist() for name, column in columns.items()} == {
                    name: column.tolist() for name, column in wanted.items()
                }


def test_times_that_floats_cannot_hold_stay_with_their_slices(tmp_path: Path) -> None:
    first, second = "1790857026000000.123", "1790857026000001.456"
    begin, end = arrow(1, launch(1000, 2000, 1), kernel("gemm", 2000, 3000, 1))
    events = (event("a", first, 5), begin, event("b", second, 5), end)
    path = write_rank(tmp_path / "rank-0.json", *events)
    ops = read_activity(path).ops
    assert ops.start.tolist() == [1790857026000000123, 1790857026000001456]


def test_an_event_without_arguments_is_one_whose_arguments_are_empty() -> None:
    def slices(*args: str) -> list[SlimEventWithArgs]:
        texts = (f"{{{one}}}" for one in args)
        return msgspec.json.decode(f"[{','.join(texts)}]", type=list[SlimEventWithArgs])

    with_one, without = '"args": {"correlation": 5}', '"ph": "X"'
    for given, found in (
        ((without,), [None]),
        ((with_one,), [5]),
        ((with_one, without), [5, None]),
        ((without, without, with_one), [None, None, 5]),
        (('"args": 3', with_one, '"args": {"correlation": "7"}'), [None, 5, 7]),
    ):
        read = arguments(slices(*given), CallArgs)
        assert [one.correlation for one in read] == found


def test_waits_say_who_waits_for_what(tmp_path: Path) -> None:
    waiting = {
        "stream": 7,
        "correlation": 5,
        "wait_on_stream": 20,
        "wait_on_cuda_event_record_corr_id": 4,
    }
    path = write(
        tmp_path,
        op("Stream Wait Event", 2000, 2001, cat="cuda_sync", pid=0, tid=7, args=waiting),
        op("Stream Sync", 1000, 1500, cat="cuda_sync", pid=0, tid=8, args={"stream": 8}),
    )
    activity = read_activity(path)
    waits = activity.waits
    assert [activity.names[code] for code in waits.name] == ["Stream Sync", "Stream Wait Event"]
    assert (waits.start.tolist(), waits.end.tolist()) == ([1000, 2000], [1500, 2001])
    found = (waits.stream, waits.correlation, waits.waits_on, waits.record)
    assert [column.tolist() for column in found] == [[8, 7], [-1, 5], [-1, 20], [-1, 4]]


def test_of_operators_only_those_of_collectives_are_read_where_communication_is_asked(
    tmp_path: Path,
) -> None:
    path = write(
        tmp_path,
        op("aten::mm", 1000, 2000),
        op("record_param_comms", 2000, 3000, args=collective_args("allreduce", "dp")),
        annotation("nccl:all_reduce", 3000, 4000),
        annotation("ProfilerStep#1", 0, 5000),
        kernel("gemm", 4000, 4500, 1),
    )
    trace = Trace(path)
    joined = JoinedColumns({name: COLUMNS[name] for name in (OP, GPU)}, CODES)
    for block in trace.map(ColumnBuilder(communication_tables()), SlimEventWithArgs):
        joined.add(block)
    names = list(joined.codes["name"])
    tables = joined.finish()
    ops = tables[OP]
    assert [names[code] for code in ops["name"]] == [
        "record_param_comms",
        "nccl:all_reduce",
        "ProfilerStep#1",
    ]
    assert ops["annotation"].tolist() == [False, True, True]
    assert ops["collective"].tolist() == [0, -1, -1]
    assert [names[code] for code in tables[GPU]["name"]] == ["gemm"]


def test_rows_are_sorted_by_start_and_of_equal_starts_the_longer_is_first() -> None:
    table = {"start": ints([5, 5, 1, 5]), "dur": ints([1, 3, 2, 2]), "name": ints([0, 1, 2, 3])}
    only_ends = {"start": ints([5, 5]), "dur": ints([1, 3]), "name": ints([0, 1])}
    as_intervals(only_ends)
    assert (only_ends["end"].tolist(), only_ends["name"].tolist()) == ([8, 6], [1, 0])
    as_intervals(table)
    assert {key: column.tolist() for key, column in table.items()} == {
        "start": [1, 5, 5, 5],
        "end": [3, 8, 7, 6],
        "name": [2, 1, 3, 0],
    }


@pytest.mark.parametrize(
    ("gpu", "far", "kept"),
    [
        ([0, 1, YEAR], 1, [0, 1]),  # one row is damage
        ([0, 1, YEAR, YEAR + 1], 2, [0, 1]),  # half of them, too
        ([0, YEAR, YEAR + 1], 0, [0, YEAR, YEAR + 1]),  # most of them: a clock of their own
        ([YEAR, YEAR + 1], 2, []),  # of two rows nobody knows
    ],
)
def test_most_rows_of_a_gpu_that_are_far_away_together_are_on_a_clock_of_their_own(
    gpu: list[int], far: int, kept: list[int]
) -> None:
    def table(starts: list[int]) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
        zeros = ints([0] * len(starts))
        return {"start": ints(starts), "dur": zeros + 1, "track": zeros.copy()}

    tables = {"call": table(list(range(1000))), GPU: table(gpu)}
    odd = mend(tables, lambda name, columns: np.full(len(columns["start"]), False), own_clock=GPU)
    assert (odd.far, tables[GPU]["start"].tolist()) == (far, kept)
    assert tables["call"]["start"].tolist() == list(range(1000))


def test_whole_microseconds_are_exact_however_large_and_with_a_decimal_among_them(
    tmp_path: Path,
) -> None:
    large = (1 << 50) + 1
    whole = write(tmp_path, event("a", str(large), "7"), event("b", str(large + 2), "8"))
    table = read_table(whole)
    assert table.slices["ts"].to_list() == [large * 1000, (large + 2) * 1000]
    mixed = write(tmp_path, event("a", f"{large}.123", "7"), event("b", str(large + 2), "8.001"))
    table = read_table(mixed)
    assert table.slices["ts"].to_list() == [large * 1000 + 123, (large + 2) * 1000]
    assert table.slices["dur"].to_list() == [7000, 8001]


def test_many_rows_are_in_the_order_of_start_then_of_length_then_of_the_file() -> None:
    drawn = np.random.default_rng(23)
    for count in (0, 1, 2, 500):
        start = drawn.integers(0, 1 + count // 5, count)
        end = start + drawn.integers(0, 4, count)
        wanted = sorted(range(count), key=lambda row: (start[row], -end[row], row))
        assert nested_order(start, end).tolist() == wanted
