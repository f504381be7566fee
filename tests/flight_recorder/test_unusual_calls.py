# SPDX-License-Identifier: Apache-2.0
"""Which calls break the habit of a rank: one letter is one kind of call."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from megatron.torch_trace.flight_recorder.habits import unusual_calls
from megatron.torch_trace.flight_recorder.record import Call


def made(kinds: str, group: str = "tp0") -> list[Call]:
    """Calls of one rank in this order."""
    return [
        Call(order, group, order, kind, "", "completed", order, "python", False, None, ())
        for order, kind in enumerate(kinds)
    ]


def unusual(
    calls: Mapping[int, list[Call]], descriptions: Mapping[str, str] | None = None
) -> dict[int, list[tuple[int, int]]]:
    """By rank, the places of unusual calls, and of what followed on the same calls before."""
    found = unusual_calls(calls, descriptions or {})
    return {
        rank: [(one.call.order, one.usual.order) for one in mine] for rank, mine in found.items()
    }


@pytest.mark.parametrize(
    ("kinds", "breaks"),
    [
        ("abcdefg" + "abcdefg", []),
        ("abcdefg" + "abcdefh", [(13, 6)]),
        ("xabcdefg" + "xzbcdefh", []),  # five before it are as they were, which may be luck
        ("abcdefg" + "abcdefi" + "abcdefh", [(13, 6), (20, 13)]),
        ("abcdefg" + "abcdefi" + "abcdefg", [(13, 6)]),
    ],
)
def test_a_call_is_unusual_if_six_before_it_were_the_same_and_another_one_followed(
    kinds: str, breaks: list[tuple[int, int]]
) -> None:
    assert unusual({0: made(kinds)}) == ({0: breaks} if breaks else {})


def test_of_a_long_record_the_end_counts() -> None:
    assert unusual({0: made("abcdefg" * 300 + "abcdefh")}) == {0: [(2_106, 2_099)]}


def test_each_rank_has_a_habit_of_its_own() -> None:
    usual = "abcdefg" * 2
    calls = {rank: made(usual) for rank in range(3)} | {3: made("abcdefgabcdefh")}
    assert unusual(calls) == {3: [(13, 6)]}


def test_what_several_ranks_do_in_groups_of_the_same_kind_is_no_rank_s_own() -> None:
    odd = "abcdefgabcdefh"
    assert unusual({0: made(odd), 1: made(odd)}) == {}
    calls = {0: made(odd, "dp0"), 1: made(odd, "dp1")}
    assert unusual(calls, {"dp0": "DATA_PARALLEL", "dp1": "DATA_PARALLEL"}) == {}
    # Of groups that nobody described nothing tells that they are of one kind.
    assert unusual(calls) == {0: [(13, 6)], 1: [(13, 6)]}
