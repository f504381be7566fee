# SPDX-License-Identifier: Apache-2.0
"""One file read by several processes gives what one process gives, in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar

import pytest
from trace_builder import GEMM, TraceBuilder

from megatron.torch_trace.analysis.run.analyse import analyze
from megatron.torch_trace.columns import activity_blocks
from megatron.torch_trace.commands.terminal.early_readers import readers_of
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.reader import early_blocks, trace
from megatron.torch_trace.reader.bytestream import ByteStream
from megatron.torch_trace.reader.cutter import Cutter, RawBlock
from megatron.torch_trace.reader.stripes import _HELLO, Stripes, _Stripe


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 8 blocks of 1 MiB."""
    built = TraceBuilder().step(1, 0, 100_000_000)
    for number in range(16_000):
        at = 6_000 * number
        built.op("aten::mm", at, at + 3_000, args={"padding": "x" * 120})
        built.gpu(GEMM, at + 2_000, at + 5_000, launch=at + 500)
    return built.write(tmp_path_factory.mktemp("large") / "rank-0.json")


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("alone", [0, 3, 100])
def test_results_come_in_the_order_of_the_file(large: Path, count: int, alone: int) -> None:
    raws = list(Cutter(ByteStream(large)))
    assert len(raws) > 5
    stripes = Stripes(count, large, attrgetter("offset"), alone=alone)
    found = [(raw.offset, result) for raw, result in stripes.map(iter(raws))]
    assert found == [(raw.offset, raw.offset) for raw in raws]


class Counted:
    """The offset of a block, with how many this process has computed before it."""

    done: ClassVar[int] = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Counted)

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, raw: RawBlock) -> tuple[int, int]:
        Counted.done += 1
        return raw.offset, Counted.done


def asked_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody asks when so many blocks are computed."""
    answers = [False] * count + [True]
    monkeypatch.setattr(early_blocks, "_is_asked", lambda: answers.pop(0))


def test_blocks_that_were_computed_before_anybody_asked_are_not_computed_again(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets = [raw.offset for raw in Cutter(ByteStream(large))]
    asked_after(3, monkeypatch)
    early_blocks.begin(large, Counted())
    stripe = _Stripe(large, Counted())
    assert stripe(_HELLO) == 3
    wanted = [0, 1, 2, 4, 5]
    found = [stripe(number) for number in wanted]
    assert found == [(offsets[n], done) for n, done in zip(wanted, (1, 2, 3, 4, 5), strict=True)]
    assert _Stripe(large, Counted())(_HELLO) == 0


def test_blocks_of_another_function_or_of_a_file_that_has_changed_are_not_taken(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rank-0.json"
    file.write_bytes(large.read_bytes())
    asked_after(2, monkeypatch)
    early_blocks.begin(file, Counted())
    assert _Stripe(file, attrgetter("offset"))(_HELLO) == 0
    assert _Stripe(large, Counted())(_HELLO) == 0
    file.write_bytes(large.read_bytes() + b" ")
    assert _Stripe(file, Counted())(_HELLO) == 0
    assert early_blocks._made.pop().results.keys() == {0, 1}


def test_what_is_computed_before_anybody_asks_is_what_the_analysis_asks_for(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    class Noted(Stripes[Any]):
        def map(self, raws: Iterator[RawBlock]) -> Iterator[tuple[RawBlock, Any]]:
            asked.append(self.function)
            return super().map(raws)

    monkeypatch.setattr(trace, "Stripes", Noted)
    alone = analyze(large, jobs=1)
    with readers_of(str(large), 2):
        assert analyze(large, jobs=2) == alone
    asked_after(2, monkeypatch)
    activity_blocks.begin(str(large))
    (function,) = asked
    early = early_blocks.taken(large, function)
    assert early is not None
    assert early.results.keys() == {0, 1}


def test_a_file_that_is_no_trace_is_for_its_reader_to_refuse(tmp_path: Path) -> None:
    file = tmp_path / "rank-0.json"
    file.write_bytes(b"x" * 3_000_000)
    with readers_of(str(file), 2), pytest.raises(UsageError, match="no trace"):
        analyze(file, jobs=2)


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
