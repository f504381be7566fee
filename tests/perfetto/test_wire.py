# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from timeline_reader import fields

from megatron.torch_trace.perfetto import shapes, wire

NUMBERS = st.integers(0, (1 << 64) - 1)


def test_numbers_are_written_as_the_format_s_own_document_does() -> None:
    assert wire.number(1, 150) == bytes([0x08, 0x96, 0x01])
    assert wire.text(2, "testing") == b"\x12\x07testing"


def test_negative_numbers_are_the_64_bits_of_their_complement() -> None:
    assert wire.varint(-2) == b"\xfe" + b"\xff" * 8 + b"\x01"


@given(NUMBERS, st.integers(1, 10))
def test_a_padded_number_is_the_same_number(value: int, width: int) -> None:
    padded = wire.varint(value, width)
    assert len(padded) == max(width, wire.width_of(value))
    assert list(fields(wire.number_key(3) + padded)) == [(3, value)]


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=5))
def test_many_messages_at_once_are_each_what_it_would_be_alone(rows: list[tuple[int, int]]) -> None:
    inner = [b"\x48\x01", *shapes.number(11, 10), *shapes.eight_bytes(47)]
    shape = shapes.Shape(shapes.message(1, inner))
    columns = [np.array(column, dtype=np.uint64) for column in zip(*rows, strict=True)]
    matrix = np.empty((len(rows), shape.width), dtype=np.uint8)
    shape.fill(matrix, columns)
    for (first, second), row in zip(rows, matrix, strict=True):
        [(number, content)] = fields(row.tobytes())
        assert number == 1
        assert list(fields(content)) == [(9, 1), (11, first), (47, second.to_bytes(8, "little"))]


def test_messages_of_several_forms_stand_in_the_order_asked_for() -> None:
    forms = [shapes.Shape([b"\x08\x01"]), shapes.Shape(shapes.number(2, 3))]
    values = np.array([0, 7, 0, 300], dtype=np.int64)
    text = shapes.interleave(
        np.array([0, 1, 0, 1]), forms, lambda form, rows: [values[rows]] if form else []
    )
    assert list(fields(text)) == [(1, 1), (2, 7), (1, 1), (2, 300)]
