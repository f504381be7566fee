# SPDX-License-Identifier: Apache-2.0
"""Entries of one shape are read as rows: the same values as Python's own reader gives."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_entries import differences

from megatron.torch_trace.pickles.pickle_bytes import NotPlainError
from megatron.torch_trace.pickles.plain_pickle import PlainPickle
from megatron.torch_trace.pickles.rows import Rows

FRAMES = [{"name": name, "filename": f"{name}.py", "line": 7} for name in "abcdefgh"]


class Taken:
    """What a reader hands on, entry by entry, and how much of it came as rows."""

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self.in_rows = 0

    def take(self, into: list[Any], items: list[Any]) -> bool:
        if not isinstance(items[0], (dict, Rows)) or "action" not in items[0]:
            return False
        for one in items:
            if isinstance(one, Rows):
                self.in_rows += len(one)
                self.entries += one.dictionaries()
            else:
                self.entries.append(one)
        return True


def as_lists(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [as_lists(one) for one in value]
    if isinstance(value, dict):
        return {key: as_lists(one) for key, one in value.items()}
    return value


def entry(number: int, **fields: Any) -> dict[str, Any]:
    """As torch writes it: a text of its own in each entry, frames that others have, too."""
    return {
        "action": "alloc",
        "addr": (1 << 46) + 512 * number,
        "size": number,
        "time_us": 1_795_813_000_000_000 + number,
        "compile_context": "".join(["N/", "A"]),
        "frames": [FRAMES[number % 7], FRAMES[number % 5], FRAMES[0]],
    } | fields


def read(value: Any, piece: int = 1 << 20) -> Taken:
    text = pickle.dumps(value, 4)
    taken = Taken()
    pieces = [text[at : at + piece] for at in range(0, len(text), piece)]
    PlainPickle(pieces, taken.take, as_rows=True).value()
    return taken


def test_entries_behind_the_first_thousand_come_as_rows() -> None:
    entries = [entry(number) for number in range(9000)]
    taken = read({"trace": entries})
    assert as_lists(taken.entries) == entries
    assert taken.in_rows > 7900


odd_entry = st.fixed_dictionaries(
    {},
    optional={
        "addr": st.one_of(st.integers(-(2**70), 2**70), st.none(), st.booleans(), st.text()),
        "size": st.one_of(st.integers(0, 2**33), st.floats(allow_nan=False)),
        "stream": st.integers(0, 300),
        "compile_context": st.text(max_size=40),
        "frames": st.lists(st.sampled_from(FRAMES), max_size=4),
        "device_free": st.integers(0, 2**40),
    },
)


@settings(deadline=None, max_examples=60)
@given(st.lists(odd_entry, max_size=30), st.integers(200, 70_000))
def test_entries_of_other_shapes_between_them_are_what_pickle_reads(
    odd: list[dict[str, Any]], piece: int
) -> None:
    shared = [FRAMES[1], FRAMES[2]]
    entries = [entry(number, frames=shared) for number in range(1100)]
    entries += [entry(number, **one) for number, one in enumerate(odd) for _ in range(3)]
    entries += [entry(number) for number in range(400)]
    value = {"trace": entries, "again": [shared, entries[1]["frames"]]}
    assert as_lists(read(value, piece).entries) == as_lists(entries)


def test_entries_whose_text_occurs_twice_in_one_of_them_are_what_pickle_reads() -> None:
    entries = [entry(number) for number in range(1100)]
    for number in range(5):
        text = f"text {number}"
        entries.append(entry(number, addr=text, compile_context=text))
    entries += [entry(number, addr=f"text of {number}") for number in range(400)]
    taken = read({"trace": entries})
    assert as_lists(taken.entries) == entries
    assert taken.in_rows > 400


def test_what_comes_behind_rows_may_refer_to_what_they_hold() -> None:
    entries = [entry(number) for number in range(3000)]
    text = pickle.dumps({"trace": entries, "blocks": [entries[2900]["frames"]]}, 4)
    value = PlainPickle([text], Taken().take, as_rows=True).value()
    assert as_lists(value["blocks"]) == [entries[2900]["frames"]]


def test_rows_that_refer_to_nothing_are_refused() -> None:
    text = pickle.dumps({"trace": [entry(number) for number in range(2500)]}, 4)
    at = text.rindex(b"]\x94(h")
    broken = text[: at + 3] + b"j\xff\xff\xff\x7fj\xff\xff\xff\x7f" + text[at + 3 :]
    with pytest.raises(NotPlainError, match="is no pickle"):
        PlainPickle([broken], Taken().take, as_rows=True).value()


@pytest.mark.parametrize("cut", [150_000, 150_001, 150_007, 150_023, 150_040])
def test_rows_cut_short_are_the_whole_ones(cut: int) -> None:
    entries = [entry(number) for number in range(3000)]
    taken = Taken()
    reader = PlainPickle([pickle.dumps({"trace": entries}, 4)[:cut]], taken.take, as_rows=True)
    reader.value()
    assert reader.cut_short
    assert taken.in_rows
    whole = len(taken.entries) - 1
    assert as_lists(taken.entries[:whole]) == entries[:whole]


@pytest.mark.parametrize("seed", range(10))
def test_random_entries_are_what_pickle_reads_in_pieces_of_any_size(seed: int) -> None:
    found, in_rows = differences(seed, 1_200)
    assert found is None
    assert in_rows
