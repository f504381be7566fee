# SPDX-License-Identifier: Apache-2.0
"""Letters and numbers are found in text, thousands at once."""

from __future__ import annotations

import numpy as np
import pytest

from megatron.torch_trace.rewrite.backward_spans.text_words import (
    BEFORE,
    BEYOND,
    WORD,
    TextWords,
)


@pytest.mark.parametrize("letters", [b"", b"{", b"..{.{{.", b"{" * 40, b"." * 7 + b"{" + b"." * 90])
def test_a_letter_is_found_wherever_it_is_in_a_piece(letters: bytes) -> None:
    around = b"{" * BEFORE + letters + b"{" * BEYOND
    room = np.full(len(around) // WORD, 0x0101010101010101, dtype=np.uint64)
    words = TextWords(around, BEFORE, BEFORE + len(letters), room)
    places = [BEFORE + place for place, letter in enumerate(letters) if letter == ord("{")]
    assert words.places(b"{").tolist() == places


@pytest.mark.parametrize("digits", [0, 1, 7, 8, 9, 15, 16])
@pytest.mark.parametrize("around", [b" ,", b'"\n', b"-."])
def test_a_number_is_read_from_both_of_its_ends(digits: int, around: bytes) -> None:
    number = b"9081726354908172"[:digits]
    text = around[:1].rjust(BEFORE) + number + around[1:] + bytes(BEYOND)
    words = TextWords(text, BEFORE, len(text) - BEYOND, np.empty(8, dtype=np.uint64))
    begin = np.array([BEFORE])
    for value, width in (words.numbers_from(begin), words.numbers_to(begin + digits)):
        assert (value.tolist(), width.tolist()) == ([int(number or b"0")], [digits])
