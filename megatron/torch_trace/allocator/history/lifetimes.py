# SPDX-License-Identifier: Apache-2.0
"""Begins and ends of the same memory put together, a piece of the history at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatron.torch_trace.allocator.snapshot import Action, History
from megatron.torch_trace.format.integer_arrays import Column, Ints, ints

_PIECE = 1 << 19
"""Entries that are put in order at once."""


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """What a history tells of memory, by address and then in order of time.

    Args:
        begin: entries that allocated.
        end: for each of them the entry that asked to free it; the length of the history if none
            did.
        orphans: entries that asked to free what was there before the history.
    """

    begin: Column
    end: Column
    orphans: Column


def lifetimes_of(history: History) -> Lifetimes:
    """Of one device: at each address, what follows a begin is its end."""
    count = len(history)
    # Half of the bytes, as long as they suffice.
    kind = np.int32 if count < 1 << 31 else np.int64
    closed: list[tuple[Column, Column]] = []
    never: list[Column] = []
    orphans: list[Column] = []
    still_open = np.zeros(0, dtype=np.int64)
    for start in range(0, count, _PIECE):
        action = history.action[start : start + _PIECE]
        fresh = np.flatnonzero((action == Action.ALLOC) | (action == Action.FREE_REQUESTED))
        rows = np.concatenate([still_open, fresh + start])
        order = rows[np.lexsort((rows, history.address[rows]))]
        begins = history.action[order] == Action.ALLOC
        same = np.zeros(len(order), dtype=bool)
        same[:-1] = history.address[order[:-1]] == history.address[order[1:]]
        ended = np.zeros(len(order), dtype=bool)
        ended[:-1] = begins[:-1] & same[:-1] & ~begins[1:]
        at = np.flatnonzero(ended)
        closed.append((order[at].astype(kind), order[at + 1].astype(kind)))
        never.append(order[begins & same & ~ended].astype(kind))
        # A free whose begin is not in the history: before it, the address held something.
        preceded = np.zeros(len(order), dtype=bool)
        preceded[1:] = ended[:-1]
        orphans.append(order[~begins & ~preceded].astype(kind))
        still_open = order[begins & ~same]
    unfreed = np.concatenate([*never, still_open.astype(kind)])
    begin = np.concatenate([*(one for one, _ in closed), unfreed])
    end = np.concatenate([*(one for _, one in closed), np.full(len(unfreed), count, dtype=kind)])
    closed.clear()
    order = by_address(history, begin)
    without_begin = np.concatenate([*orphans, np.zeros(0, dtype=kind)])
    return Lifetimes(begin[order], end[order], without_begin[by_address(history, without_begin)])


def by_address(history: History, entries: Column) -> Ints:
    """The order of entries by address, those of one address in order of time."""
    return ints(np.lexsort((entries, history.address[entries])))
