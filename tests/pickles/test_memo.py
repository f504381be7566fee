# SPDX-License-Identifier: Apache-2.0
"""Numbers of a pickle mean what they meant, however old they are."""

from __future__ import annotations

import pytest

from megatron.torch_trace.pickles import memo as numbers
from megatron.torch_trace.pickles.memo import Memo


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "_BLOCK", 8)
    monkeypatch.setattr(numbers, "_RECENT", 32)
    monkeypatch.setattr(numbers, "_UNPACKED", 2)
    monkeypatch.setattr(numbers, "_FOUND", 4)


def test_a_number_means_the_same_when_it_is_old() -> None:
    memo = Memo()
    for number in range(500):
        memo.append(f"thing {number}")
    assert len(memo) == 500
    assert [memo[number] for number in range(500)] == [f"thing {number}" for number in range(500)]
    assert [memo[number] for number in (499, 3, 250, 3)] == [
        f"thing {number}" for number in (499, 3, 250, 3)
    ]


def test_one_thing_may_have_many_numbers() -> None:
    memo = Memo()
    code = memo.code_of("stack")
    memo.extend([numbers.LET_GO, code] * 300)
    assert (memo[1], memo[599], memo[598]) == ("stack", "stack", None)


def test_a_number_that_is_given_to_another_thing_means_that_one() -> None:
    memo = Memo()
    for number in range(300):
        memo.append(number)
    memo[7]
    for number in (7, 299):
        memo.put(number, "other")
    memo.put(300, "next")
    assert [memo[number] for number in (6, 7, 299, 300)] == [6, "other", "other", "next"]


@pytest.mark.parametrize("number", [-1, -500, 300, 1 << 31])
def test_a_number_that_nothing_has_is_an_error(number: int) -> None:
    memo = Memo()
    for one in range(300):
        memo.append(one)
    with pytest.raises(IndexError):
        memo[number]


def test_what_is_let_go_is_forgotten_and_its_neighbours_are_not() -> None:
    memo = Memo()
    for thing in ({"frames": 0}, "text", {"frames": 1}, {"name": 2}):
        memo.append(thing)
    memo.let_go(1, "frames")
    memo.append("later")
    assert [memo[number] for number in range(5)] == [
        {"frames": 0}, "text", None, {"name": 2}, "later"
    ]  # fmt: skip
