# SPDX-License-Identifier: Apache-2.0
"""What is equal on many ranks lies in memory once, and changes no answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kept_windows import window_of_two

from megatron.torch_trace.analysis.run.rank import RankOutcome, analyse_rank
from megatron.torch_trace.analysis.run.shared_values import SharedValues

ALIKE = ("kind", "step", "bytes", "elements", "seq")


@pytest.fixture
def ranks(tmp_path: Path) -> list[RankOutcome]:
    window = window_of_two(tmp_path)
    return [analyse_rank(window / f"rank-{rank}.pt.trace.json") for rank in range(2)]


def anew(outcome: RankOutcome) -> RankOutcome:
    """As read from a file: equal, and nothing in it is another's."""
    result = deepcopy(outcome.result)
    for row in rows_in(result):
        for field in dataclasses.fields(row):
            value = getattr(row, field.name)
            if isinstance(value, str):
                object.__setattr__(row, field.name, "".join(list(value)))
    return dataclasses.replace(outcome, result=result, calls=deepcopy(outcome.calls))


def rows_in(value: Any) -> Iterator[Any]:
    """A dataclass and all that its fields hold."""
    if isinstance(value, tuple):
        for one in value:
            yield from rows_in(one)
    elif dataclasses.is_dataclass(value):
        yield value
        for field in dataclasses.fields(value):
            yield from rows_in(getattr(value, field.name))


def texts_in(outcome: RankOutcome) -> list[str]:
    found = []
    for row in rows_in(outcome.result):
        values = (getattr(row, field.name) for field in dataclasses.fields(row))
        found += [one for one in values if isinstance(one, str)]
    return found


def test_an_outcome_is_the_same_after_it_was_shared(ranks: list[RankOutcome]) -> None:
    shared = SharedValues()
    for outcome in (*ranks, anew(ranks[0])):
        expected = anew(outcome)
        found = shared.of(outcome)
        assert repr(found.result) == repr(expected.result)
        assert (found.rank, found.run, found.calls.kinds) == (
            expected.rank,
            expected.run,
            expected.calls.kinds,
        )
        for name in (*ALIKE, "start", "end"):
            np.testing.assert_array_equal(
                getattr(found.calls, name), getattr(expected.calls, name), strict=True
            )


def test_every_text_of_a_rank_is_that_of_the_rank_before(ranks: list[RankOutcome]) -> None:
    shared = SharedValues()
    first, again = shared.of(ranks[0]), shared.of(anew(ranks[0]))
    texts = texts_in(first)
    assert len(texts) > 10
    assert all(one is other for one, other in zip(texts, texts_in(again), strict=True))


def test_columns_of_calls_are_shared_where_every_number_is_equal(ranks: list[RankOutcome]) -> None:
    shared = SharedValues()
    first, again, other = shared.of(ranks[0]), shared.of(anew(ranks[0])), anew(ranks[0])
    assert all(getattr(again.calls, name) is getattr(first.calls, name) for name in ALIKE)
    other.calls.bytes[-1] += 1
    found = shared.of(other)
    assert found.calls.bytes is other.calls.bytes
    assert found.calls.seq is first.calls.seq


def test_a_checksum_that_two_columns_share_by_chance_mixes_nothing_up(
    ranks: list[RankOutcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zlib.crc32", lambda _: 7)
    shared = SharedValues()
    for outcome in ranks:
        expected = anew(outcome).calls
        found = shared.of(outcome).calls
        for name in ALIKE:
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
