# SPDX-License-Identifier: Apache-2.0
"""What the rows of a timeline are called."""

from __future__ import annotations

from pathlib import Path

import pytest
from timeline_reader import read_timeline
from trace_builder import collective_args, instant, kernel, launch, metadata, op, write_rank

from megatron.torch_trace.perfetto import convert

GROUP = collective_args("allreduce", "tp")


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
    work = [
        [
            launch(100_000 + 1_000 * n, 101_000 + 1_000 * n, n),
            kernel("gemm", 110_000 + 10_000 * n, 120_000 + 10_000 * n, n),
        ]
        for n in range(gemms)
    ]
    end = 150_000 + 1_000 * waited
    last = [
        launch(105_000, 106_000, 9), kernel("ncclDevKernel_AllReduce", 150_000, end, 9, **GROUP)
    ]  # fmt: skip
    assert name in rows(write_rank(tmp_path / "rank-0.json", *work, last))


def test_threads_have_the_names_that_a_trace_gives_them(tmp_path: Path) -> None:
    trace = write_rank(
        tmp_path / "rank-0.json",
        *(op("aten::mm", 100_000, 105_000, tid=tid) for tid in (43, 44, 45, 46)),
        metadata("thread_name", 42, 43, name=" loader "),
        metadata("thread_name", 42, 44, name=7),
        metadata("thread_name", 42, 45),
        metadata("process_name", 42, 46, name="python"),
        op("thread_name", 106_000, 107_000, tid=46, args={"name": "no metadata"}),
    )
    assert sorted(row[-1] for row in rows(trace) if isinstance(row, tuple)) == [
        "rank 00 CPU",
        "rank 00 loader",
        "rank 00 thread 44",
        "rank 00 thread 45",
        "rank 00 thread 46",
    ]


def test_marks_of_the_profiler_are_called_after_what_they_are(tmp_path: Path) -> None:
    trace = write_rank(
        tmp_path / "rank-0.json",
        op("aten::mm", 100_000, 105_000),
        op("PyTorch Profiler (0)", 100_000, 109_000, pid="Spans", tid="PyTorch Profiler"),
        instant("Record Window End", 109_000, pid="", tid=""),
    )
    assert [name for *_, name in (row for row in rows(trace) if isinstance(row, tuple))] == [
        "rank 00 CPU",
        "rank 00 thread 42",
        "rank 00 profiler Spans: PyTorch Profiler",
        "rank 00 profiler marks",
    ]
