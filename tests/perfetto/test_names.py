# SPDX-License-Identifier: Apache-2.0
"""What the rows of a timeline are called."""

from __future__ import annotations

from pathlib import Path

import pytest
from perfetto_builder import Event, instant, kernel, launch, op, write
from timeline_reader import read_timeline

from megatron.torch_trace.perfetto import convert

GROUP = {
    "Collective name": "allreduce",
    "Process Group Name": "3",
    "Process Group Description": "TENSOR_MODEL_PARALLEL_GROUP",
}


def rows(trace: Path) -> list[object]:
    output = trace.with_suffix(".pftrace")
    convert(trace, output)
    return list(read_timeline(output).rows.values())


@pytest.mark.parametrize(
    ("waited", "gemms", "name"),
    [
        (1, 3, "rank 00 stream 7 compute"),
        (20, 3, "rank 00 stream 7 compute + tp"),
        (900, 3, "rank 00 stream 7 compute + tp"),
        (900, 1, "rank 00 stream 7 tp"),
    ],
)
def test_a_stream_that_mostly_computes_is_called_so_however_long_it_waits(
    waited: int, gemms: int, name: str, tmp_path: Path
) -> None:
    work: list[list[Event]] = [
        [launch(100 + n, 1, n), kernel("gemm", 110 + 10 * n, 10, n)] for n in range(gemms)
    ]
    last = [launch(105, 1, 9), kernel("ncclDevKernel_AllReduce", 150, waited, 9, **GROUP)]
    assert name in rows(write(tmp_path / "rank-0.json", *work, last))


def test_marks_of_the_profiler_are_called_after_what_they_are(tmp_path: Path) -> None:
    trace = write(
        tmp_path / "rank-0.json",
        op("aten::mm", 100, 5),
        op("PyTorch Profiler (0)", 100, 9, pid="Spans", tid="PyTorch Profiler"),
        instant("Record Window End", 109, pid="", tid=""),
    )
    assert [name for *_, name in (row for row in rows(trace) if isinstance(row, tuple))] == [
        "rank 00 CPU",
        "rank 00 thread 42",
        "rank 00 profiler Spans: PyTorch Profiler",
        "rank 00 profiler marks",
    ]
