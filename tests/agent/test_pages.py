# SPDX-License-Identifier: Apache-2.0
"""An answer for an agent has a bound; what is longer has pages, and no row is lost."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron.torch_trace.agent.pages import MOST_CHARACTERS, answer
from megatron.torch_trace.errors import UsageError


def test_a_short_answer_is_one_page_without_what_is_unknown() -> None:
    assert json.loads(answer({"rank": 2, "mfu": None}, [{"ms": 1.0, "flops": None}])) == {
        "rank": 2,
        "rows": [{"ms": 1.0}],
        "page": 1,
        "pages": 1,
    }
    assert json.loads(answer({"rank": 2})) == {"rank": 2}


@given(
    texts=st.lists(st.text(max_size=900), min_size=1, max_size=60),
    facts=st.dictionaries(st.text(max_size=9), st.integers(), max_size=9),
)
def test_every_row_is_on_one_page_and_no_page_is_longer_than_the_bound(
    texts: list[str], facts: dict[str, int]
) -> None:
    rows = [{"number": number, "text": text} for number, text in enumerate(texts)]
    first = json.loads(answer(facts, rows))
    found = []
    for page in range(1, first["pages"] + 1):
        shown = answer(facts, rows, page)
        assert len(shown) <= MOST_CHARACTERS
        found += [row["number"] for row in json.loads(shown)["rows"]]
    assert found == list(range(len(rows)))


def test_long_texts_lose_their_middle_and_control_characters_are_shown() -> None:
    row = json.loads(answer({}, [{"name": "a" * 1000 + "\x1b"}]))["rows"][0]
    assert row["name"] == "a" * 200 + "…" + "a" * 196 + "\\x1b"


@pytest.mark.parametrize("page", [0, -1, 2])
def test_a_page_that_is_not_there_is_a_sentence(page: int) -> None:
    with pytest.raises(UsageError, match=rf"page {page}: there are 1 pages; ask for 1 to 1\."):
        answer({}, [{"a": 1}], page)


def test_a_row_longer_than_a_page_is_refused() -> None:
    with pytest.raises(UsageError, match=r"a row has 39,791 characters, and a page has room"):
        answer({}, [{str(n): "a" * 390 for n in range(100)}])
