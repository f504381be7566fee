# SPDX-License-Identifier: Apache-2.0
"""Packets that say what the rows of a timeline are, and what the numbers in other packets mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from megatron.torch_trace.perfetto.wire import message, number, text

_FIRST_CLOCK = 128
"""From here on Perfetto's numbers of clocks are free; each sequence of packets has one here."""

BYTES, COUNT = 3, 2
"""Perfetto's units of counters."""

_REAL_TIME, _BOOT_TIME = 1, 6
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


def clocks(zeros_ns: Mapping[int, int], epoch_ns: int | None) -> bytes:
    """The packet that puts the clocks of all sequences on one timeline.

    Args:
        zeros_ns: sequence -> time of the timeline at which its clock shows 0.
        epoch_ns: ns since 1970 at time 0 of the timeline; None if it is not known.
    """
    at = max(zeros_ns.values(), default=0)
    shown = {_BOOT_TIME: at}
    if epoch_ns is not None:
        shown[_REAL_TIME] = epoch_ns + at
    shown |= {_FIRST_CLOCK + sequence: at - zero for sequence, zero in zeros_ns.items()}
    parts = (message(1, number(1, clock), number(2, time)) for clock, time in shown.items())
    return message(_PACKET, message(6, *parts))


def beginning(sequence: int) -> bytes:
    """The first packet of a rank's part."""
    clock = number(58, _FIRST_CLOCK + sequence)
    return message(_PACKET, number(10, sequence), number(13, _CLEARED), message(59, clock))


def interned(sequence: int, kind: int, values: Iterable[str]) -> Iterator[bytes]:
    """Packets that give the values the numbers 1, 2, 3, ..."""
    entries = (message(kind, number(1, n), text(2, value)) for n, value in enumerate(values, 1))
    while some := list(islice(entries, _PER_PACKET)):
        yield packet(sequence, message(_INTERNED, *some))
