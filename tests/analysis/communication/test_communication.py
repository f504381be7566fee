# SPDX-License-Identifier: Apache-2.0
"""What is recorded of communication: whose it is, how many bytes, how fast."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_builder import BACKWARD, GEMM, NCCL, SENDRECV, TraceBuilder, collective_args

from megatron.torch_trace.analysis.communication.bandwidth import (
    message_bytes,
)
from megatron.torch_trace.analysis.communication.collectives import attribute, canonical
from megatron.torch_trace.analysis.communication.totals import (
    DimensionTotal,
    communication_rows,
    dimension_totals,
)
from megatron.torch_trace.analysis.timeline.activity import Collective
from megatron.torch_trace.format.communication_names import (
    is_communication,
)


def rows(builder: TraceBuilder, folder: Path) -> list[tuple[str, str, str, int, int, int]]:
    """(dimension, group, collective, calls, time, exposed) of every row."""
    timeline = builder.timeline(folder)
    return [
        (r.dimension, r.group, r.collective, r.calls, r.time_ns, r.exposed_ns)
        for r in communication_rows(timeline, attribute(timeline))
    ]


def test_a_kernel_is_what_its_arguments_say(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 200).gpu(GEMM, 20, 50, launch=1)
    trace.collective(30, 60, dimension="tp").collective(80, 90, dimension="tp")
    trace.collective(100, 140, dimension="dp", name="_reduce_scatter_base")
    assert rows(trace, tmp_path) == [
        ("tp", "TENSOR_MODEL_PARALLEL_GROUP", "allreduce", 2, 40, 20),
        ("dp", "DATA_PARALLEL_GROUP_WITH_CP", "reduce_scatter", 1, 40, 40),
    ]


def test_pipeline_kernels_without_arguments_are_known_by_what_stands_before_their_range(
    tmp_path: Path,
) -> None:
    trace = TraceBuilder().step(1, 0, 500)
    send, recv = (collective_args(name, "pp", nelems=100) for name in ("send", "recv"))
    trace.op("record_param_comms", 10, 12, args=send).op("record_param_comms", 14, 16, args=recv)
    trace.annotation("nccl:coalesced", 20, 30).gpu(SENDRECV, 40, 80, launch=25, stream=9)
    # The wait is no call; the next range has a receive only.
    trace.op("record_param_comms", 32, 33, args=collective_args("wait", "pp", size=1))
    trace.op("record_param_comms", 100, 102, args=recv)
    trace.annotation("nccl:coalesced", 110, 120).gpu(SENDRECV, 130, 140, launch=115, stream=9)
    timeline = trace.timeline(tmp_path)
    found = communication_rows(timeline, attribute(timeline))
    assert [(r.dimension, r.collective, r.calls, r.time_ns, r.bytes) for r in found] == [
        ("pp", "send_recv", 1, 40, 200),
        ("pp", "recv", 1, 10, 200),
    ]


def test_what_goes_out_and_what_comes_in_pass_each_other(tmp_path: Path) -> None:
    # As sendrecv_perf of nccl-tests has it: S is one direction, both at the same time.
    trace = TraceBuilder().step(1, 0, 500)
    for number, (name, nelems) in enumerate((("send", 100), ("recv", 300), ("send", 150))):
        args = collective_args(name, "pp", nelems=nelems)
        trace.op("record_param_comms", 10 + number, 11 + number, args=args)
    trace.annotation("nccl:coalesced", 20, 30).gpu(SENDRECV, 40, 80, launch=25, stream=9)
    timeline = trace.timeline(tmp_path)
    (row,) = communication_rows(timeline, attribute(timeline))
    assert (row.collective, row.bytes, row.algbw_gbps, row.busbw_gbps) == (
        "send_recv",
        600,
        15.0,
        15.0,
    )


def test_a_send_of_another_thread_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 200)
    trace.op("record_param_comms", 10, 12, args=collective_args("send", "pp"), tid=BACKWARD)
    trace.annotation("nccl:coalesced", 20, 30).gpu(SENDRECV, 40, 80, launch=25)
    assert rows(trace, tmp_path) == [("unknown", "unknown", "send_recv", 1, 40, 40)]


def test_without_arguments_the_enclosing_operator_tells(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 200)
    trace.op("record_param_comms", 10, 20, args=collective_args("all_to_allv", "ep"))
    trace.gpu(NCCL, 30, 40, launch=15)
    assert rows(trace, tmp_path) == [("ep", "EXPERT_MODEL_PARALLEL_GROUP", "all_to_all", 1, 10, 10)]


def test_nothing_is_dropped_what_nobody_knows_is_a_row(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 200)
    trace.gpu("ncclDevKernel_Generic(ncclDevKernelArgs)", 10, 30, launch=1).gpu(NCCL, 40, 50)
    assert rows(trace, tmp_path) == [
        ("unknown", "unknown", "unknown", 1, 20, 20),
        ("unknown", "unknown", "allreduce", 1, 10, 10),
    ]


def test_barriers_are_a_row_of_their_own_although_their_kernel_is_an_all_reduce(
    tmp_path: Path,
) -> None:
    trace = TraceBuilder().step(1, 0, 200)
    trace.collective(10, 30, dimension="default", name="barrier", nelems=0)
    trace.collective(50, 60, dimension="default")
    assert rows(trace, tmp_path) == [
        ("default", "default_pg", "barrier", 1, 20, 20),
        ("default", "default_pg", "allreduce", 1, 10, 10),
    ]


def test_dimensions_may_overlap_and_are_unions(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 200).gpu(GEMM, 0, 20, launch=0)
    trace.collective(10, 40, dimension="tp").collective(30, 60, dimension="dp")
    trace.collective(35, 50, dimension="dp")
    timeline = trace.timeline(tmp_path)
    assert dimension_totals(timeline, attribute(timeline)) == (
        DimensionTotal("dp", 30, 30),
        DimensionTotal("tp", 30, 20),
    )


def test_bytes_and_bandwidth_are_those_of_nccl_tests(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 10_000)
    # 1000 bf16 over 4 ranks: S = 2000 bytes in 100 ns = 20 GB/s, bus factor 2 * 3/4.
    trace.collective(1000, 1100, dimension="tp", size=4)
    # All-gather: S is what comes out.
    gather = collective_args("allgather", "dp", nelems=1000, size=4) | {"Out msg nelems": 4000}
    trace.gpu(NCCL, 2000, 2400, launch=1900, args=gather)
    timeline = trace.timeline(tmp_path)
    one, other = communication_rows(timeline, attribute(timeline))
    assert (one.bytes, one.algbw_gbps, one.busbw_gbps) == (2000, 20.0, 30.0)
    assert (other.bytes, other.algbw_gbps, other.busbw_gbps) == (8000, 20.0, 15.0)


@pytest.mark.parametrize(
    ("name", "in_", "out", "elements"),
    [
        ("allreduce", 1000, 1000, 1000),
        ("_allgather_base", 250, 1000, 1000),
        ("allgather_into_tensor_coalesced", 250, 1000, 1000),
        ("_reduce_scatter_base", 1000, 250, 1000),
        ("reduce_scatter_tensor_coalesced", 1000, 250, 1000),
        ("all_to_allv", 700, 1300, 700),
        # No token of this rank goes to any expert.
        ("all_to_allv", 0, 1300, 1300),
        ("broadcast", 1000, 1000, 1000),
        ("gather", 250, 1000, 1000),
        ("scatter", 1000, 250, 1000),
        ("send", 1000, 0, 1000),
        ("recv", 0, 1000, 1000),
    ],
)
def test_a_message_is_the_whole_buffer(name: str, in_: int, out: int, elements: int) -> None:
    call = Collective(name, in_nelems=in_, out_nelems=out, group_size=4, dtype="BFloat16")
    assert message_bytes(call, canonical(name)) == 2 * elements


def test_bytes_of_an_unknown_type_are_unknown_not_zero(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 100)
    trace.gpu(NCCL, 10, 20, launch=1, args=collective_args("allreduce", "tp", dtype="Odd"))
    timeline = trace.timeline(tmp_path)
    (row,) = communication_rows(timeline, attribute(timeline))
    assert (row.bytes, row.algbw_gbps, row.busbw_gbps) == (None, None, None)


def test_sends_in_a_coalesced_range_of_torch_s_newer_backend_are_attributed(
    tmp_path: Path,
) -> None:
    trace = TraceBuilder().step(1, 0, 200)
    trace.op("record_param_comms", 10, 12, args=collective_args("send", "pp"))
    trace.annotation("nccl2:coalesced", 20, 30).gpu(SENDRECV, 40, 80, launch=25, stream=9)
    calls = attribute(trace.timeline(tmp_path))
    assert [(kind.dimension, kind.collective) for kind in calls.kinds] == [("pp", "send")]


@pytest.mark.parametrize(
    "name",
    ["oneccl_allreduce_ring", "void deep_ep::internode::combine<true>(int)", "nvshmemi_barrier"],
)
def test_kernels_of_every_library_are_communication(name: str) -> None:
    assert is_communication(name)
