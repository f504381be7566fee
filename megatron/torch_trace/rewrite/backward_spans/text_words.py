# SPDX-License-Identifier: Apache-2.0
"""Text as numbers: eight letters at any position are one, so thousands are looked at at once."""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.columns.intervals import Ints, ints

Words = npt.NDArray[np.uint64]
Letters = npt.NDArray[np.uint8]
Truths = npt.NDArray[np.bool_]
WORD = 8
PADDING = bytes(64)
"""As long as what is looked for behind a position in the text."""

_LOW = np.uint64(0x0F0F0F0F0F0F0F0F)
_ZEROS = np.uint64(0x3030303030303030)
_BEYOND_9 = np.uint64(0x7676767676767676)
_HIGH_BITS = np.uint64(0x8080808080808080)
_BYTE = np.uint64(WORD)
# Eight digits as a number in three steps: pairs, pairs of pairs, both halves.
_STEPS = (
    (np.uint64(2561), np.uint64(8), np.uint64(0x00FF00FF00FF00FF)),
    (np.uint64(6553601), np.uint64(16), np.uint64(0x0000FFFF0000FFFF)),
    (np.uint64(42949672960001), np.uint64(32), np.uint64(0xFFFFFFFF)),
)


class TextWords:
    """One piece of text.

    Args:
        text: it begins with the end of a line and has `PADDING` behind it.
        room: of a letter each, at least as many as the text has; what was in it is lost.

    Attributes:
        letters: as numbers, without the padding.
    """

    def __init__(self, text: bytes, room: Truths) -> None:
        length = len(text) - len(PADDING)
        self.letters: Letters = np.frombuffer(text, dtype=np.uint8, count=length)
        self._room = room[:length]
        self._last = len(text) - WORD
        self._words: Words = np.ndarray(
            (self._last + 1,), dtype=np.dtype("<u8"), buffer=text, strides=(1,)
        )

    def places(self, letter: bytes) -> Ints:
        """Where a letter is."""
        np.equal(self.letters, letter[0], out=self._room)
        return ints(np.flatnonzero(self._room))

    def words(self, at: Ints) -> Words:
        """Eight letters from each position on, which is in the text or right behind it."""
        return self._words[at]

    def have(self, at: Ints, text: bytes) -> Truths:
        """Where `text`, of at least eight letters, stands at these positions in the text."""
        found: Truths = self._words[at] == word(text[:WORD])
        for offset in (*range(WORD, len(text) - WORD, WORD), len(text) - WORD):
            if offset:
                found &= self._words[at + offset] == word(text[offset : offset + WORD])
        return found

    def numbers_from(self, at: Ints) -> tuple[Ints, Ints]:
        """The numbers of up to 16 digits that begin at these positions, and their digits."""
        first = self.words(at)
        width = _digits_in_front(first)
        value = _value(first, width)
        long = np.flatnonzero(width == WORD)
        if len(long):
            second = self.words(at[long] + WORD)
            more = _digits_in_front(second)
            value[long] = value[long] * _POWERS[more] + _value(second, more)
            width[long] += more
        return value, width

    def numbers_to(self, end: Ints) -> tuple[Ints, Ints]:
        """The numbers of up to 16 digits that end before these positions, and their digits."""
        last = self.words(end - WORD)
        width = _digits_behind(last)
        value = _parsed(_kept(last, width))
        long = np.flatnonzero(width == WORD)
        if len(long):
            before = self.words(end[long] - 2 * WORD)
            more = _digits_behind(before)
            value[long] += _parsed(_kept(before, more)) * _POWERS[WORD]
            width[long] += more
        return value, width


_POWERS = ints([10**power for power in range(WORD + 1)])


def word(text: bytes) -> np.uint64:
    """Eight letters as `TextWords.words` has them."""
    return np.uint64(int.from_bytes(text, "little"))


def _others(words: Words) -> Words:
    """The high bit of each byte that is no digit; right up to the first one, from the front."""
    digits = words ^ _ZEROS
    return cast(Words, ((digits + _BEYOND_9) | digits) & _HIGH_BITS)


def _exponent(bits: Words) -> Ints:
    """The number of the highest bit, from 1; 0 where there is none."""
    return ints(np.frexp(bits.astype(np.float64))[1])


def _digits_in_front(words: Words) -> Ints:
    others = _others(words)
    lowest = others & (~others + np.uint64(1))
    return np.where(others == 0, WORD, (_exponent(lowest) >> 3) - 1)


def _digits_behind(words: Words) -> Ints:
    return WORD - (_exponent(_others(words)) >> 3)


def _kept(words: Words, width: Ints) -> Words:
    """The last `width` letters of each word as digits, nothing before them."""
    shift = (WORD - width).astype(np.uint64) * _BYTE
    # A shift by all 64 bits is not defined.
    cut = np.minimum(shift, np.uint64(63))
    return np.where(width > 0, ((words & _LOW) >> cut) << cut, np.uint64(0))


def _value(words: Words, width: Ints) -> Ints:
    """The number of the first `width` letters of each word."""
    shift = np.minimum((WORD - width).astype(np.uint64) * _BYTE, np.uint64(63))
    return _parsed(np.where(width > 0, (words & _LOW) << shift, np.uint64(0)))


def _parsed(digits: Words) -> Ints:
    for factor, shift, mask in _STEPS:
        digits = ((digits * factor) >> shift) & mask
    return digits.astype(np.int64)
