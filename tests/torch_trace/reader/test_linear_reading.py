# SPDX-License-Identifier: Apache-2.0
"""Damaged text costs time in proportion to its length, whatever the damage: steps are counted."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from step_counting import CountedText, Steps, counted

from megatron.torch_trace.reader import Damage, landmarks, lenient, metadata, salvage
from megatron.torch_trace.reader import tail as behind

pytestmark = pytest.mark.slow

STEPS_A_BYTE = 400


def event(name: str, more: str = "") -> str:
    return f'{{"ph": "X", "cat": "cpu_op", "name": "{name}", "ts": 1.5, "dur": 2{more}}}'


def filled(piece: str, size: int) -> str:
    return piece * (size // len(piece))


EVENTS: dict[str, Callable[[int], str]] = {
    "a quote and blanks": lambda n: event('a"' + " " * n),
    "a quote and newlines": lambda n: event('a"' + "\n" * n),
    "quotes and blanks": lambda n: event(filled('" ', n)),
    "a quote and commas": lambda n: event('a"' + filled(" ,", n)),
    "quotes and colons": lambda n: event('a"' + filled('":', n)),
    "keys that are not closed": lambda n: '{"ph": "X", ' + filled('"a', n) + "}",
    "keys without a value": lambda n: '{"ph": "X", ' + filled('"a":,', n) + "}",
    "lone surrogates": lambda n: event(filled(r"\ud800", n)),
    "escapes beside inf": lambda n: event(filled(r"\ud83d\ude00\n", n), ', "args": {"x": inf}'),
    "backslashes": lambda n: event("\\" * n + "q"),
    "control characters": lambda n: event("\x01" * n),
    "blanks behind the last event": lambda n: event('a"b') + " " * n + "x",
    "blanks behind the frame": lambda n: event('a"b') + "\n]" + " " * n + "x",
    "newlines before rubbish": lambda n: event('a"b') + ",\n" + "\n" * n + "{ oops",
    "commas": lambda n: event('a"b') + "," * n + event("b"),
    "brackets": lambda n: event('a"b', ', "args": ' + "[" * n) + "," + event("b"),
    "the key of an event again and again": lambda n: filled('{"ph":', n),
    "the same in arrays": lambda n: filled('{"ph":[', n),
    "the same with a value": lambda n: filled('{"ph":"X", ', n),
    "the same on lines": lambda n: filled('\n{"ph":"X", ', n),
    "whole events inside broken ones": lambda n: filled('{"ph": x {"ph":"X"} x ', n),
    "strings that are not closed": lambda n: filled('{"ph":"X","name":"a {"ph":"X"} a ', n),
    "words for numbers and rubbish": lambda n: filled('{"ph":"X","name":inf} x ', n),
    "other letters, closed too early": lambda n: filled('{"ph":"X","name":"é"}, "tid": 1}, ', n),
    "ends of the frame": lambda n: event('a"b') + filled('}],"a":', n),
    "objects of no event": lambda n: filled('{"foo": inf, "ph": 1},', n),
    "a number": lambda n: '{"ph": "X", "ts": ' + "1" * n + ".}",
}

METADATA: dict[str, Callable[[int], str]] = {
    "objects that are not closed": lambda n: filled('"schemaVersion": {', n),
    "strings in strings": lambda n: filled('"schemaVersion": "x" y "', n),
    "rubbish": lambda n: filled('"a": x" ', n),
    "entries beside inf": lambda n: '"q": inf,' + filled('"a": 1, ', n),
    "braces": lambda n: '"INFO": ' + filled("{", n),
    "a quote and blanks": lambda n: '"INFO": "a"' + " " * n + 'b"',
    "versions": lambda n: '"cuda' + "a" * n,
    "escapes and a backslash": lambda n: '"traceName": "' + filled(r"\"", n) + "\\",
}


def steps_of_events(text: str) -> Steps:
    with counted(salvage, lenient, landmarks) as steps:
        salvager = salvage._Salvager(text.encode("utf-8", "surrogateescape"), 0)
        salvager.text = CountedText.of(salvager.text, steps)
        salvager.landmarks.text = salvager.text
        salvager.run()
    return steps


def steps_of_metadata(text: str) -> Steps:
    with counted(metadata, lenient, landmarks, behind) as steps:
        behind.unclosed(text.encode())
        behind.split(text.encode(), is_array=False)
        metadata.parse_members(text.encode(), 0, Damage())
    return steps


@pytest.mark.parametrize("shape", EVENTS)
def test_damaged_events_cost_steps_in_proportion_to_their_length(shape: str) -> None:
    half, whole = (steps_of_events(EVENTS[shape](size)).count for size in (3_000, 6_000))
    assert whole < STEPS_A_BYTE * 6_000
    assert whole < 2.6 * half + 8 * 6_000


@pytest.mark.parametrize("shape", METADATA)
def test_damaged_metadata_costs_steps_in_proportion_to_its_length(shape: str) -> None:
    half, whole = (steps_of_metadata(METADATA[shape](size)).count for size in (3_000, 6_000))
    assert whole < STEPS_A_BYTE * 6_000
    assert whole < 2.6 * half + 8 * 6_000


PIECES = [
    '{"ph":"X",', '{"name": "a"', '"', '""', '"}', "}", "{", "[", "]", ",", ":", " ", "\n", "  ",
    "\\", r"\ud800", r"\u12", r"\"", "inf", "1e9", "é", "\x01", '"args": {', '"schemaVersion":',
    event("whole"), ",\n" + event("whole"), "\n  ],", "x",
]  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PIECES), st.integers(1, 60)), min_size=1, max_size=6))
def test_whatever_is_repeated_the_work_stays_in_proportion(parts: list[tuple[str, int]]) -> None:
    text = "".join(piece * times for piece, times in parts) * 3
    allowed = STEPS_A_BYTE * (len(text) + 1_000)
    assert steps_of_events(text).count < allowed
    assert steps_of_metadata(text).count < allowed


def test_the_counter_sees_what_takes_quadratic_time() -> None:
    """The pattern that a reader here once had; its steps grow with the square."""

    def count(blanks: int) -> int:
        module: Any = type(re)("module")
        module.PATTERN = re.compile(r"\s*,?\s*\]")
        with counted(module) as steps:
            module.PATTERN.match(" " * blanks + "x")
        return steps.count

    assert count(400) > 3.5 * count(200)
