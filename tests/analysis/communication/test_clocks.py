# SPDX-License-Identifier: Apache-2.0
"""The clocks of ranks are found once: every command that needs them gives the same answer."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from trace_builder import BASE, NCCL, TraceBuilder, collective_args

from megatron import torch_trace
from megatron.torch_trace.analysis.communication import clocks
from megatron.torch_trace.files.sources import find_traces, ranked
from megatron.torch_trace.parquet.export import export

FAR = 91 * 86_400 * 10**9 + 1
"""Clocks of hosts that were never set are days apart."""


def answers(folder: Path) -> list[dict[int, int | None]]:
    """What analyze, convert, export and merge say of the clocks of the traces in a folder."""
    merged = torch_trace.merge(
        ranked(find_traces([folder]).traces), folder.parent / "merged.json", align=True
    )
    export(folder, folder.parent / "tables")
    table = pl.read_parquet(folder.parent / "tables" / "ranks.parquet")
    return [
        {clock.rank: clock.offset_ns for clock in torch_trace.analyze(folder).clocks},
        dict(torch_trace.convert(folder, folder.parent / "timeline.pftrace").clock_ns),
        dict(table.select("rank", "clock_ns").iter_rows()),
        merged.offsets_ns,
    ]


def write(folder: Path, rank: int, trace: TraceBuilder) -> None:
    trace.write(folder / f"rank-{rank}.pt.trace.json")


@pytest.mark.parametrize("most_key", [clocks._MOST_KEY, 0])
def test_ranks_are_aligned_through_ranks_in_between_and_among_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_key: int
) -> None:
    # With 0 no rank and difference fit into one number, as those of clocks centuries apart do not.
    monkeypatch.setattr(clocks, "_MOST_KEY", most_key)
    of_ranks = {0: 0, 1: 100, 2: FAR, 3: 9_000, 4: 2_000, 5: 0}
    dimensions = {0: ["tp"], 1: ["tp", "dp"], 2: ["dp"], 3: ["pp"], 4: ["pp"], 5: ["ep"]}
    for rank, clock in of_ranks.items():
        trace = TraceBuilder(rank, 6, clock=clock).step(1, 0, 10_000_000)
        for number in range(1, 5):
            for dimension in dimensions[rank]:
                at = number * 1_000_000 + (500_000 if dimension == "dp" else 0)
                trace.collective(at, at + 9_000, dimension=dimension)
        write(tmp_path / "in", rank, trace)
    expected = {0: 0, 1: -100, 2: -FAR, 3: 0, 4: 7_000, 5: None}
    assert answers(tmp_path / "in") == [expected] * 4


def test_a_trace_that_begins_some_calls_later_is_not_taken_for_another_clock(
    tmp_path: Path,
) -> None:
    for rank, sizes in ((0, range(10, 20)), (1, range(13, 20))):
        trace = TraceBuilder(rank, 2, clock=500 * rank).step(1, 0, 30_000_000)
        for size in sizes:
            trace.collective(size * 1_000_000, size * 1_000_000 + 9_000, nelems=size)
        write(tmp_path / "in", rank, trace)
    assert answers(tmp_path / "in") == [{0: 0, 1: -500}] * 4


def test_kernels_without_arguments_are_known_by_the_operator_that_launched_them(
    tmp_path: Path,
) -> None:
    for rank in range(2):
        trace = TraceBuilder(rank, 2, clock=700 * rank).step(1, 0, 30_000_000)
        for number in range(1, 6):
            at = number * 1_000_000
            args = collective_args("allreduce", "dp", nelems=number)
            trace.op("record_param_comms", at - 50, at - 5, args=args)
            trace.gpu(NCCL, at, at + 9_000, launch=at - 20)
        write(tmp_path / "in", rank, trace)
    assert answers(tmp_path / "in") == [{0: 0, 1: -700}] * 4


def test_a_rank_that_lost_its_base_is_put_where_its_collectives_say(tmp_path: Path) -> None:
    for rank in range(2):
        trace = TraceBuilder(rank, 2).step(1, 0, 30_000_000)
        for number in range(1, 6):
            trace.collective(number * 1_000_000, number * 1_000_000 + 9_000)
        if rank:
            del trace.entries["baseTimeNanoseconds"]
        write(tmp_path / "in", rank, trace)
    assert answers(tmp_path / "in") == [{0: 0, 1: BASE}] * 4
