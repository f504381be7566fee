# SPDX-License-Identifier: Apache-2.0
"""Sizes, durations, shares and counted nouns are written in one way, for every command and log."""

from __future__ import annotations

import re

import pytest

from megatron.torch_trace import wording


def test_a_share_is_whole_percent_and_never_claims_more_than_it_is() -> None:
    shares = (0.234, 0.034, 0.0996, 0.0004, 0.0, 0.994, 0.9951, 0.9994, 0.99996, 1.0, 1.002, 10.28)
    assert [wording.percent(share) for share in shares] == [
        "23 %",
        "3.4 %",
        "10 %",
        "<0.1 %",
        "0 %",
        "99 %",
        "99.5 %",
        "99.9 %",
        ">99.9 %",
        "100 %",
        "100 %",
        "1,028 %",
    ]
    assert wording.percent(None) == "unknown"


def test_a_column_of_milliseconds_can_be_compared() -> None:
    times = (1_234_567_890, 12_345_678, 1_230_000, 45_000, 400, 0, None)
    assert [wording.milliseconds(ns) for ns in times] == [
        "1,235",
        "12.3",
        "1.23",
        "0.045",
        "<0.001",
        "0",
        "-",
    ]


def test_a_number_has_three_digits_and_two_below_1() -> None:
    values = (1234.5, 480.0, 99.96, 12.34, 4.5, 0.9951, 0.884, 0.0456, 0.00123, 0)
    shown = ["1,234", "480", "100", "12.3", "4.5", "1", "0.88", "0.046", "0.0012", "0"]
    assert [wording.number(value) for value in values] == shown
    columns = ["1,234", "480", "100", "12.3", "4.50", "1.00", "0.88", "0.046", "0.001", "0"]
    assert [wording.column(value) for value in values] == columns


def test_one_iteration_is_no_plural() -> None:
    assert [wording.iterations(shown) for shown in (3, "3-4", "3, 7")] == [
        "iteration 3",
        "iterations 3-4",
        "iterations 3, 7",
    ]


def test_a_duration_has_three_digits_in_the_unit_that_fits() -> None:
    times = (7, 999, 999_600, 999_400_000, 999_600_000, 12_345_678_901, 21_600_000_000_000)
    assert [wording.duration(ns) for ns in times] == [
        "7 ns",
        "999 ns",
        "1 ms",
        "999 ms",
        "1 s",
        "12.3 s",
        "21,600 s",
    ]
    assert [wording.duration(-ns) for ns in times] == [
        f"-{wording.duration(ns)}" for ns in times
    ], "offsets of clocks go both ways"
    assert wording.seconds(0.0456) == "45.6 ms"
    assert wording.duration(None) == "unknown"


def test_a_size_has_three_digits_in_decimal_units() -> None:
    sizes = (0, 12, 999, 1_500, 999_600_000, 2_280_000_000, 999_960_000_000, 4e15, None)
    assert [wording.size(count) for count in sizes] == [
        "0 B",
        "12 B",
        "999 B",
        "1.5 kB",
        "1 GB",
        "2.28 GB",
        "1 TB",
        "4,000 TB",
        "unknown",
    ]
    assert wording.megabytes(748.6) == "749 MB"


@pytest.mark.parametrize("digits", range(25))
def test_no_size_and_no_duration_is_written_with_an_exponent(digits: int) -> None:
    for value in (10**digits, 10**digits - 1, 9.996 * 10**digits, 9.994 * 10**digits):
        for text in (wording.size(value), wording.duration(value), wording.number(value)):
            assert re.fullmatch(r"(\d{1,3}|\d{1,3}(,\d{3})+)(\.\d+)?( \w+)?", text), text
            whole = text.partition(" ")[0]
            assert "," in whole or len(whole.replace(".", "")) <= 4


def test_speeds_say_where_they_mean_little() -> None:
    assert [wording.speed(v) for v in (0.04, 4.567, 480.4, 1234.5)] == [
        "<0.1",
        "4.57",
        "480",
        "1,234",
    ]
    assert [wording.speed(v, with_waiting=True) for v in (0.04, 4.567, None)] == [
        "-",
        ">4.57",
        "-",
    ]


def test_nouns_are_counted_in_the_right_number() -> None:
    assert wording.counted(1, "trace") == "1 trace"
    assert wording.counted(0, "trace") == "0 traces"
    assert wording.counted(1_234, "launch", "launches") == "1,234 launches"


def test_ranks_in_a_row_are_joined() -> None:
    assert wording.ranks((0, 1, 2, 3, 8, 10, 11)) == "0-3, 8, 10-11"
    assert wording.ranks(()) == ""
