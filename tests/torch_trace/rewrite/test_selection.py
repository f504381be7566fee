# SPDX-License-Identifier: Apache-2.0
"""What may be asked of `slim`: words, times and numbers, and what was done before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.rewrite.selection import Selection, parse_duration, parse_numbers


def test_an_unknown_word_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(UsageError, match="--drop pyton: unknown; choose from python, flows"):
        Selection(drop=frozenset({"pyton"}))
    with pytest.raises(UsageError, match="--preset all: unknown; choose from overlap, perfetto"):
        Selection().with_preset("all")


@pytest.mark.parametrize(
    ("written", "ns"), [("5us", 5000), ("1.5ms", 1_500_000), ("2s", 2 * 10**9), ("7", 7000)]
)
def test_times_have_units(written: str, ns: int) -> None:
    assert parse_duration(written, "--min-dur") == ns


def test_a_time_or_number_that_is_none_is_named() -> None:
    with pytest.raises(UsageError, match="--from soon: not a time; write 300ns, 5us"):
        parse_duration("soon", "--from")
    with pytest.raises(UsageError, match="--step 5-3: not a list of numbers"):
        parse_numbers("5-3", "--step")
    assert parse_numbers("1,4-6", "--step") == {1, 4, 5, 6}


def test_a_selection_that_was_made_before_is_not_made_again() -> None:
    selection = Selection(steps=frozenset({5, 6}), min_dur_ns=9)
    assert selection.without_done({"steps": [5]}) == replace(selection, steps=None)
    assert selection.without_done({"steps": [4]}) == selection
