# SPDX-License-Identifier: Apache-2.0
"""One file read by several processes gives what one process gives, in the same order."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path

import pytest
from trace_builder import GEMM, TraceBuilder

from megatron.torch_trace.analysis.run.analyse import analyze
from megatron.torch_trace.reader.bytestream import ByteStream
from megatron.torch_trace.reader.cutter import Cutter
from megatron.torch_trace.reader.stripes import Stripes


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 8 blocks of 1 MiB."""
    trace = TraceBuilder().step(1, 0, 100_000_000)
    for number in range(16_000):
        at = 6_000 * number
        trace.op("aten::mm", at, at + 3_000, args={"padding": "x" * 120})
        trace.gpu(GEMM, at + 2_000, at + 5_000, launch=at + 500)
    return trace.write(tmp_path_factory.mktemp("large") / "rank-0.json")


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("alone", [0, 3, 100])
def test_results_come_in_the_order_of_the_file(large: Path, count: int, alone: int) -> None:
    raws = list(Cutter(ByteStream(large)))
    assert len(raws) > 5
    stripes = Stripes(count, large, attrgetter("offset"), alone=alone)
    found = [(raw.offset, result) for raw, result in stripes.map(iter(raws))]
    assert found == [(raw.offset, raw.offset) for raw in raws]


def test_an_error_in_another_process_is_raised_here(large: Path) -> None:
    stripes = Stripes(2, large, attrgetter("no_such_thing"), alone=100)
    with pytest.raises(AttributeError):
        list(stripes.map(Cutter(ByteStream(large)).__iter__()))


def test_the_analysis_is_the_same_with_one_process_and_with_two(large: Path) -> None:
    assert analyze(large, jobs=1) == analyze(large, jobs=2)


def test_a_file_that_ends_in_the_middle_is_the_same_too(large: Path, tmp_path: Path) -> None:
    cut = tmp_path / "rank-0.json"
    cut.write_bytes(large.read_bytes()[:-1_500_000])
    one, two = analyze(cut, jobs=1), analyze(cut, jobs=2)
    assert one == two
    assert "truncated" in one.ranks[0].repairs
