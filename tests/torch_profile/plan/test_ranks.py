# SPDX-License-Identifier: Apache-2.0
"""Rank expressions: every form, and every mistake with its sentence."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pytest

from megatron.torch_profile.plan.ranks import Layout, check, resolve
from megatron.torch_trace.errors import UsageError

# World of 8 = tp 2 x pp 2 x dp 2 on two nodes, in Megatron's order (tp fastest, then dp, then pp).
LAYOUT = Layout(8, {"tp": 2, "cp": 1, "pp": 2, "dp": 2, "ep": 1})


@dataclass
class Rank:
    rank: int
    host: str
    coordinates: dict[str, int] = field(default_factory=dict)


WORLD = [
    Rank(rank, f"node{rank // 4}", {"tp": rank % 2, "dp": rank // 2 % 2, "pp": rank // 4})
    for rank in range(8)
]


@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        ("0", (0,)),
        ("0 1", (0, 1)),
        ("3 1", (1, 3)),
        ("0-3", (0, 1, 2, 3)),
        ("0-7:4", (0, 4)),
        ("0-2,7", (0, 1, 2, 7)),
        ("all", (0, 1, 2, 3, 4, 5, 6, 7)),
        ("last", (7,)),
        ("0 last", (0, 7)),
        ("per-node", (0, 4)),
        ("tp=0,dp=0", (0, 4)),
        ("pp=first", (0, 1, 2, 3)),
        ("pp=last", (4, 5, 6, 7)),
        ("pp=last,tp=1,dp=1", (7,)),
        ("pp=first pp=last,tp=0,dp=0", (0, 1, 2, 3, 4)),
        ("cp=0,ep=0,tp=0,dp=0,pp=0", (0,)),
    ],
)
def test_an_expression_means_these_ranks(words: str, ranks: tuple[int, ...]) -> None:
    assert resolve(words.split(), LAYOUT, WORLD) == ranks


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("8", "8: ranks must be 0 to 7"),
        ("0-9", "0-9: ranks must be 0 to 7"),
        ("0 1 0", "0 1 0: rank 0 is given twice"),
        ("0-3 2", "0-3 2: rank 2 is given twice"),
        ("3-1", "3-1: the range 3-1 is empty"),
        ("0-7:0", "0-7:0: the range 0-7:0 is empty"),
        ("", ": no rank given"),
        ("0-3,7,all", "0-3,7,all: all must be a word of its own"),
        ("all 0", "all 0: all already means every rank, give it alone"),
        ("tp=9", "tp=9: tp must be 0 to 1"),
        ("tp=0,tp=1", "tp=0,tp=1: tp is given twice in tp=0,tp=1"),
        (
            "xp=0",
            "xp=0: 'xp=0' is no parallel coordinate; write tp, pp, dp, cp or ep with a number",
        ),
        ("tp=0,3", "tp=0,3: '3' is no parallel coordinate"),
        ("foo", "foo: 'foo' is none of a rank, a range (0-7, 8-63:8), all, last"),
        ("-1", "-1: '-1' is none of a rank"),
        ("1.5", "1.5: '1.5' is none of a rank"),
        ("0,", "0,: '' is none of a rank"),
    ],
)
def test_a_mistake_is_one_sentence_with_the_layout(words: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"--torch-profile-ranks {words}".strip())) as e:
        check(words.split(), LAYOUT)
    text = str(e.value)
    assert sentence in text
    assert text.endswith("(world size 8 = tp 2 x cp 1 x pp 2 x dp 2).")
    assert "\n" not in text


def test_coordinates_that_no_rank_has_are_a_mistake() -> None:
    lopsided = [rank for rank in WORLD if rank.coordinates["pp"] == 0]
    with pytest.raises(UsageError, match="no rank has pp=last"):
        resolve(["pp=last"], LAYOUT, lopsided)


def test_a_huge_range_is_refused_without_being_counted() -> None:
    with pytest.raises(UsageError, match="ranks must be 0 to 7"):
        check(["0-999999999999999"], LAYOUT)


def test_a_layout_that_is_not_known_yet_lets_coordinates_pass() -> None:
    check(["tp=9"], Layout(8, {}))
