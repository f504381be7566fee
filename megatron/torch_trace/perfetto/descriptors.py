# SPDX-License-Identifier: Apache-2.0
"""Packets that say what the rows of a timeline are, and what the numbers in other packets mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from megatron.torch_trace.perfetto.wire import message, number, text

SEQUENCE_CLOCK = 64
"""Perfetto's number of a clock that only one sequence of packets has: the first such number."""

BYTES, COUNT = 3, 2
"""Perfetto's units of counters."""

_BOOT_TIME = 6
_EXPLICIT = 3
_PACKET, _DESCRIPTOR, _INTERNED = 1, 60, 12
_CLEARED, _NEEDS_STATE = 1, 2
_PER_PACKET = 2000

CATEGORIES, NAMES, ARGUMENT_NAMES, ARGUMENT_TEXTS = 1, 2, 3, 29
"""Fields of Perfetto's InternedData."""


def root(uuid: int, name: str) -> bytes:
    """A row at the top that orders its children itself."""
    return message(_DESCRIPTOR, number(1, uuid), text(2, name), number(11, _EXPLICIT))


def child(uuid: int, name: str, parent: int, order: int) -> bytes:
    """A row below another."""
    return message(
        _DESCRIPTOR, number(1, uuid), text(2, name), number(5, parent), number(12, order)
    )


def counter(uuid: int, name: str, parent: int, order: int, unit: int) -> bytes:
    """A row that shows a number over time."""
    return message(
        _DESCRIPTOR,
        number(1, uuid),
        text(2, name),
        number(5, parent),
        number(12, order),
        message(8, number(3, unit)),
    )


def process(uuid: int, pid: int, name: str) -> bytes:
    return message(_DESCRIPTOR, number(1, uuid), message(3, number(1, pid), text(6, name)))


def thread(uuid: int, pid: int, tid: int, name: str) -> bytes:
    return message(
        _DESCRIPTOR, number(1, uuid), message(4, number(1, pid), number(2, tid), text(5, name))
    )


def packet(sequence: int, *parts: bytes) -> bytes:
    """A packet that may use the names and the clock of its sequence."""
    return message(_PACKET, number(10, sequence), number(13, _NEEDS_STATE), *parts)


def beginning(sequence: int, zero_ns: int) -> bytes:
    """The first packets of a rank: its clock, which shows 0 at `zero_ns` of the timeline."""
    clocks = [
        message(1, number(1, clock), number(2, at))
        for clock, at in ((SEQUENCE_CLOCK, 0), (_BOOT_TIME, zero_ns))
    ]
    return message(
        _PACKET,
        number(10, sequence),
        number(13, _CLEARED),
        message(59, number(58, SEQUENCE_CLOCK)),
    ) + message(_PACKET, number(10, sequence), message(6, *clocks))


def interned(sequence: int, kind: int, values: Iterable[str]) -> Iterator[bytes]:
    """Packets that give the values the numbers 1, 2, 3, ..."""
    entries = (message(kind, number(1, n), text(2, value)) for n, value in enumerate(values, 1))
    while some := list(islice(entries, _PER_PACKET)):
        yield packet(sequence, message(_INTERNED, *some))
