# SPDX-License-Identifier: Apache-2.0
"""Which arrows have both their ends: each end is an event of its own, anywhere in the file.

What must be remembered of all ends are sets of ids, a bit or two each.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap64

from megatron.torch_trace.columns.codes import coded
from megatron.torch_trace.format.categories import category
from megatron.torch_trace.reader.event import Identity

Ids = NDArray[np.uint64]
Indices = NDArray[np.int32]


class ArrowEnds(NamedTuple):
    """Ends of arrows of one kind and phase in one block.

    Args:
        category: of these arrows; kind: their category and name.
        phase: `s` where they start, `f` where they finish, `t` between.
        ids: of each end.
        indices: of each end in the block.
    """

    category: str
    kind: str
    phase: str
    ids: Ids
    indices: Indices


def ends_of(events: Sequence[Any], indices: Indices) -> list[ArrowEnds]:
    """Some ends of arrows by kind and phase.

    Args:
        events: of a block; those at `indices` are ends of arrows.
    """
    ends = [events[index] for index in indices.tolist()]
    ids = flow_numbers([end.id for end in ends])
    keys, code = coded([f"{end.ph}\0{end.cat}\0{end.name}" for end in ends])
    found = []
    for number, key in enumerate(keys):
        phase, written, name = key.split("\0", 2)
        mine, present = code == number, category(written)
        found.append(ArrowEnds(present, f"{present}\0{name}", phase, ids[mine], indices[mine]))
    return found


class ArrowIds:
    """Kind of arrow -> ids at which such arrows start, and at which they finish."""

    def __init__(self) -> None:
        self._ends: dict[str, tuple[BitMap64, BitMap64]] = {}

    def add(self, kind: str, phase: str, ids: Ids) -> None:
        """Note ends of arrows of one kind and phase."""
        starts, finishes = self._ends.setdefault(kind, (BitMap64(), BitMap64()))
        if phase == "s":
            starts.update(bitmap(ids))
        elif phase == "f":
            finishes.update(bitmap(ids))

    def whole(self) -> dict[str, BitMap64]:
        """Kind -> ids of the arrows that have both ends."""
        return {kind: starts & finishes for kind, (starts, finishes) in self._ends.items()}


def among(ids: Ids, whole: BitMap64) -> NDArray[np.bool_]:
    """Which of `ids` are in `whole`; almost always all are."""
    if bitmap(ids) <= whole:
        return np.ones(len(ids), dtype=bool)
    return np.array([number in whole for number in ids.tolist()], dtype=bool)


def bitmap(ids: Ids) -> BitMap64:
    """A set of ids; from an array.array it is made three times as fast as from numpy's."""
    return BitMap64(array("Q", ids.tobytes()))


def flow_numbers(identities: list[Identity]) -> Ids:
    """`flow_number` of each."""
    with contextlib.suppress(OverflowError):
        numbers = np.array(identities)
        # Text, none at all, or beyond 64 bits gives an array of another kind.
        if numbers.dtype.kind in "iu" and numbers.min() >= 0:
            return numbers.astype(np.uint64)
    return np.array([flow_number(identity) for identity in identities], dtype=np.uint64)


def flow_number(identity: Identity) -> int:
    """An arrow's id as a number of 64 bits; text is hexadecimal, as viewers read it."""
    if type(identity) is int and 0 <= identity < 1 << 64:
        return identity
    if isinstance(identity, str):
        try:
            number = int(identity, 16)
        except ValueError:
            number = -1
    else:
        number = -1 if identity is None else identity
    if 0 <= number < 1 << 64:
        return number
    from hashlib import blake2b

    return int.from_bytes(blake2b(str(identity).encode(), digest_size=8).digest(), "big")
