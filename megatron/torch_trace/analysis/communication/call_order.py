# SPDX-License-Identifier: Apache-2.0
"""The calls of one group side by side: row by row by the number that each rank gives them."""

from __future__ import annotations

import numpy as np

from megatron.torch_trace.columns.intervals import Ints, ints


def by_number(numbers: list[Ints]) -> tuple[Ints, Ints]:
    """The rows of all ranks in the order of their calls.

    Args:
        numbers: for each rank the numbers of its calls, in the order of its rows.

    Returns:
        (the rows, counted over all ranks one after the other, by call and then by rank; where in
        them each call begins). A number can occur twice on one rank: the first is the first of the
        others, and so on.
    """
    one = numbers[0]
    # The ranks of a group mostly call the same in the same order: then there is nothing to sort.
    if (one[1:] > one[:-1]).all() and all(np.array_equal(one, other) for other in numbers[1:]):
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
