# SPDX-License-Identifier: Apache-2.0
"""Which calls of several ranks are the same, where torch has numbered none."""

from __future__ import annotations

from pathlib import Path

from trace_builder import NCCL, TraceBuilder, collective_args

from megatron.torch_trace.analysis.communication.collectives import attribute
from megatron.torch_trace.analysis.communication.matching import match
from megatron.torch_trace.analysis.communication.rank_calls import rank_calls

Same = list[tuple[str, list[tuple[int, int]]]]


def same_calls(folder: Path, *traces: TraceBuilder) -> Same:
    """The collective of each call, and its (rank, start in the trace)."""
    ranks = {}
    for rank, trace in enumerate(traces):
        timeline = trace.timeline(folder / str(rank))
        ranks[rank] = rank_calls(timeline, attribute(timeline))
    found = match(ranks)
    base = int(min(one.start[0] for one in ranks.values()))
    base -= base % 1_000_000_000
    return [
        (
            found.labels[int(found.label[call])][2],
            [
                (int(found.rank[row]), int(found.start[row]) - base)
                for row in range(first, first + int(found.size[call]))
            ],
        )
        for call, first in enumerate(found.first.tolist())
    ]


def test_calls_of_unknown_groups_are_not_one_call_where_traces_tell_of_groups(
    tmp_path: Path,
) -> None:
    """Such as what CUDA graphs replay: two tensor-parallel pairs do not wait for each other."""
    traces = []
    for rank in range(2):
        trace = TraceBuilder(rank, 4).step(1, 0, 1000).collective(100, 150, dimension="dp")
        traces.append(trace.gpu(NCCL, 200, 300 + 50 * rank, launch=190))
    assert same_calls(tmp_path, *traces) == [("allreduce", [(0, 100), (1, 100)])]


def test_where_no_trace_tells_of_a_group_all_ranks_are_one(tmp_path: Path) -> None:
    traces = [
        TraceBuilder(rank, 2).step(1, 0, 1000).gpu(NCCL, 200, 300, launch=190) for rank in range(2)
    ]
    assert same_calls(tmp_path, *traces) == [("allreduce", [(0, 200), (1, 200)])]


def test_what_had_queued_up_before_the_trace_comes_before_what_is_launched_in_it(
    tmp_path: Path,
) -> None:
    """On rank 1 two calls, on two streams, begin after the launch of the third one."""
    early, late = (TraceBuilder(rank, 2).step(1, 0, 1000) for rank in range(2))
    for number in range(3):
        early.collective(100 * number + 100, 100 * number + 150)
    for start, stream in ((300, 7), (200, 9)):
        late.gpu(NCCL, start, start + 50, stream=stream, args=collective_args("allreduce", "dp"))
    late.collective(400, 450, launch=20)
    assert same_calls(tmp_path, early, late) == [
        ("allreduce", [(0, 100), (1, 300)]),
        ("allreduce", [(0, 200), (1, 200)]),
        ("allreduce", [(0, 300), (1, 400)]),
    ]


def test_a_call_of_another_size_is_another_call(tmp_path: Path) -> None:
    """Rank 1 has lost its second call: what follows there stands one place too early."""
    whole, holed = (TraceBuilder(rank, 2).step(1, 0, 1000) for rank in range(2))
    for number, nelems in enumerate((10, 10, 10, 20, 30)):
        whole.collective(100 * number + 100, 100 * number + 150, nelems=nelems)
        if number != 3:
            holed.collective(100 * number + 100, 100 * number + 150, nelems=nelems)
    assert same_calls(tmp_path, whole, holed) == [
        ("allreduce", [(0, start), (1, start)]) for start in (100, 200, 300)
    ]


def test_gathered_at_one_rank_is_one_call_though_the_sizes_differ(tmp_path: Path) -> None:
    traces = []
    for rank in range(2):
        sizes = {"Out msg nelems": 0 if rank else 2000}
        trace = TraceBuilder(rank, 2).step(1, 0, 1000)
        traces.append(trace.collective(100, 150, name="gather", **sizes))
    assert same_calls(tmp_path, *traces) == [("gather", [(0, 100), (1, 100)])]
