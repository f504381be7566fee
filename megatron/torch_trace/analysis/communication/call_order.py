# SPDX-License-Identifier: Apache-2.0
"""The calls of one group side by side: row by row by the number that each rank gives them."""

from __future__ import annotations

import numpy as np

from megatron.torch_trace.columns.intervals import Ints, ints

_MOST_SHIFT = 16


def are_alike(numbers: list[Ints]) -> bool:
    """Whether all ranks of a group call the same in the same order, as they mostly do.

    Args:
        numbers: as in `by_number`.
    """
    one = numbers[0]
    # Ranks that share a column need not be compared.
    return bool((one[1:] > one[:-1]).all()) and all(
        other is one or np.array_equal(one, other) for other in numbers[1:]
    )


def by_number(numbers: list[Ints]) -> tuple[Ints, Ints]:
    """The rows of all ranks in the order of their calls.

    Args:
        numbers: for each rank the numbers of its calls, in the order of its rows.

    Returns:
        (the rows, counted over all ranks one after the other, by call and then by rank; where in
        them each call begins). A number can occur twice on one rank: the first is the first of the
        others, and so on.
    """
    if are_alike(numbers):
        one = numbers[0]
        rows = np.arange(len(numbers) * len(one)).reshape(len(numbers), len(one))
        return rows.T.ravel(), np.arange(0, rows.size, len(numbers))
    number = np.concatenate(numbers)
    again = np.concatenate([_times_before(one) for one in numbers])
    # By rank already, and sorting keeps that order.
    order = np.lexsort((again, number))
    return order, _first_of_runs(number[order], again[order])


def _times_before(number: Ints) -> Ints:
    """How many earlier calls of the same rank have the same number."""
    if (number[1:] > number[:-1]).all():
        return np.zeros_like(number)
    order = np.argsort(number, kind="stable")
    first = _first_of_runs(number[order])
    sizes = np.diff(np.append(first, len(order)))
    found = np.empty_like(number)
    found[order] = np.arange(len(order)) - np.repeat(first, sizes)
    return found


def _first_of_runs(*keys: Ints) -> Ints:
    """Where, in sorted keys, another combination of them begins."""
    if not len(keys[0]):
        return ints([])
    changes = np.zeros(len(keys[0]), dtype=bool)
    changes[0] = True
    for key in keys:
        changes[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(changes)


def shifted(signatures: list[Ints]) -> list[Ints]:
    """Numbers for calls to which torch gave none: places, shifted until most messages agree.

    Args:
        signatures: for each rank a code for what each call is, the same on all ranks.
    """
    reference = max(signatures, key=len)
    shifts: dict[bytes, int] = {}
    found = []
    for one in signatures:
        shift = shifts.get(one.tobytes())
        if shift is None:
            # Most ranks of a group do the same.
            shift = shifts[one.tobytes()] = _shift(reference, one)
        found.append(np.arange(shift, shift + len(one)))
    return found


def _shift(reference: Ints, other: Ints) -> int:
    """How far `other` begins behind `reference`: the shift with the most messages that agree."""
    if np.array_equal(reference, other):
        return 0
    best, most = 0, -1
    longest = max(len(reference) - len(other), 0) + _MOST_SHIFT
    for shift in sorted(range(-_MOST_SHIFT, longest + 1), key=abs):
        begin, end = max(0, -shift), min(len(other), len(reference) - shift)
        if end - begin <= most:
            continue
        agree = int((other[begin:end] == reference[begin + shift : end + shift]).sum())
        if agree > most:
            best, most = shift, agree
    return best
