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
BEFORE, BEYOND = 136, 64
"""So many letters before and behind a position are looked at: a text must have as many more."""

_LOW = np.uint64(0x0F0F0F0F0F0F0F0F)
_ZEROS = np.uint64(0x3030303030303030)
_BEYOND_9 = np.uint64(0x7676767676767676)
_HIGH_BITS = np.uint64(0x8080808080808080)
_ONE, _EIGHTH, _BYTE, _BITS = np.uint64(1), np.uint64(3), np.uint64(8), np.uint64(64)
# A float64 has its exponent behind this many bits, for 1 one more than this; whole bytes of it.
_MANTISSA, _BIAS, _WHOLE_BYTES = np.uint64(52), np.uint64(1022), np.uint64(0xFFF8)
_THREE, _TO_THE_END = np.uint64(0x0F0F0F00), np.uint64(32)
# 1 in byte k of a word, times this, is k in the highest three bits.
_WHICH, _WHICH_AT = np.uint64(sum(k << (61 - 8 * k) for k in range(WORD))), np.uint64(61)
# Eight digits as a number in three steps: pairs, pairs of pairs, both halves.
_STEPS = (
    (np.uint64(2561), np.uint64(8), np.uint64(0x00FF00FF00FF00FF)),
    (np.uint64(6553601), np.uint64(16), np.uint64(0x0000FFFF0000FFFF)),
    (np.uint64(42949672960001), np.uint64(32), np.uint64(0xFFFFFFFF)),
)


class TextWords:
    """One piece of a text, between two of its ends of lines.

    Args:
        text: all of it; positions are its own.
        begin: of the piece; `BEFORE` letters or more stand before it, with an end of a line.
        end: of the piece; `BEYOND` letters or more stand behind it.
        room: for more letters than the piece has; what was in it is lost.

    Attributes:
        letters: of the whole text, as numbers.
    """

    def __init__(self, text: bytes, begin: int, end: int, room: Words) -> None:
        self.begin, self.end = begin, end
        self.letters: Letters = np.frombuffer(text, dtype=np.uint8)
        self._room = room[: (end - begin) // WORD + 1]
        self._words: Words = np.ndarray(
            (len(text) - WORD + 1,), dtype=np.dtype("<u8"), buffer=text, strides=(1,)
        )

    def places(self, letter: bytes) -> Ints:
        """Where a letter is in the piece."""
        length = self.end - self.begin
        has = self._room.view(np.bool_)
        np.equal(self.letters[self.begin : self.end], letter[0], out=has[:length])
        has[length:] = False
        # Few words have one, and to look through as many truths as letters takes twice as long.
        at = ints(np.flatnonzero(self._room != 0))
        return _places_of_ones(at, self._room[at]) + self.begin

    def words(self, at: Ints) -> Words:
        """Eight letters from each position on, which is in the piece or right behind it."""
        return self._words[at]

    def before(self, end: Ints, length: int) -> list[bytes]:
        """So many letters before each position, at most `BEFORE`."""
        windows: npt.NDArray[np.bytes_] = np.ndarray(
            (len(self.letters) - length + 1,), f"S{length}", self.letters, strides=(1,)
        )
        return cast(list[bytes], windows[end - length].tolist())

    def have(self, at: Ints, text: bytes) -> Truths:
        """Where `text`, of at least eight letters, stands at these positions in the piece."""
        found: Truths = self._words[at] == word(text[:WORD])
        for offset in (*range(WORD, len(text) - WORD, WORD), len(text) - WORD):
            if offset:
                found &= self._words[at + offset] == word(text[offset : offset + WORD])
        return found

    def numbers_from(self, at: Ints) -> tuple[Ints, Ints]:
        """The numbers of up to 16 digits that begin at these positions, and their digits."""
        value, width = _in_front(self.words(at))
        long = np.flatnonzero(width == WORD)
        if len(long):
            more, digits = _in_front(self.words(at[long] + WORD))
            value[long] = value[long] * _POWERS[digits] + more
            width[long] += digits
        return value, width

    def numbers_to(self, end: Ints) -> tuple[Ints, Ints]:
        """The numbers of up to 16 digits that end before these positions, and their digits."""
        value, width = _behind(self.words(end - WORD))
        long = np.flatnonzero(width == WORD)
        if len(long):
            before = self.words(end[long] - 2 * WORD)
            if (before == before[0]).all():  # as in times of one second
                before = before[:1]
            more, digits = _behind(before)
            value[long] += more * _POWERS[WORD]
            width[long] += digits
        return value, width


_POWERS = ints([10**power for power in range(WORD + 1)])


def word(text: bytes) -> np.uint64:
    """Eight letters as `TextWords.words` has them."""
    return np.uint64(int.from_bytes(text, "little"))


def fraction(words: Words) -> Ints:
    """The number of the three letters behind the first one."""
    return _parsed((words & _THREE) << _TO_THE_END)


def _places_of_ones(at: Ints, words: Words) -> Ints:
    """Where the bytes are that are 1, ascending, of words of zeros and ones at these positions."""
    others = words & (words - _ONE)
    found = at * WORD + (((words ^ others) * _WHICH) >> _WHICH_AT).view(np.int64)
    rows = np.flatnonzero(others != 0)
    if not len(rows):
        return found
    return np.sort(np.concatenate((found, _places_of_ones(at[rows], others[rows]))))


def _others(words: Words) -> Words:
    """The high bit of each byte that is no digit; right up to the first one, from the front."""
    digits = words ^ _ZEROS
    return cast(Words, ((digits + _BEYOND_9) | digits) & _HIGH_BITS)


def _up_to_highest(bits: Words) -> Words:
    """How many bits there are up to the byte with the highest one; 0 where there is none."""
    exponent = (bits | _ONE).astype(np.float64).view(np.uint64) >> _MANTISSA
    return cast(Words, (exponent - _BIAS) & _WHOLE_BYTES)


def _in_front(words: Words) -> tuple[Ints, Ints]:
    """The numbers with which words begin, and their digits."""
    others = _others(words)
    until = _up_to_highest(others & (~others + _ONE))
    # Nothing has 64 bits, as if it were the byte behind; a shift by so many leaves none.
    until[others == 0] = _BITS + _BYTE
    digits = until - _BYTE
    return _parsed((words & _LOW) << (_BITS - digits)), (digits >> _EIGHTH).astype(np.int64)


def _behind(words: Words) -> tuple[Ints, Ints]:
    """The numbers with which words end, and their digits."""
    until = _up_to_highest(_others(words))
    digits = ((_BITS - until) >> _EIGHTH).astype(np.int64)
    return _parsed(((words & _LOW) >> until) << until), digits


def _parsed(digits: Words) -> Ints:
    for factor, shift, mask in _STEPS:
        digits = ((digits * factor) >> shift) & mask
    return digits.astype(np.int64)
