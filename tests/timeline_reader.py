# SPDX-License-Identifier: Apache-2.0
"""What a Perfetto trace says, decoded packet by packet as its importer does, in plain Python."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

Value = int | bytes


def fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """(number, value) of each field of a message."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value & ((1 << 64) - 1)

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = 8 if key & 7 == 1 else varint()
        assert key & 7 in (1, 2), f"wire type {key & 7}"
        assert at + size <= len(data), "a message is longer than what it is in"
        yield key >> 3, data[at : at + size]
        at += size


def message(data: bytes) -> dict[int, list[Any]]:
    """Fields by number."""
    found: dict[int, list[Any]] = defaultdict(list)
    for number, value in fields(data):
        found[number].append(value)
    return found


@dataclass
class Slice:
    """A slice or, with `dur` None, an instant; `ts` on the timeline."""

    row: str
    name: str
    category: str | None
    ts: int
    dur: int | None
    depth: int
    args: dict[str, Any]
    begins: list[int]
    finishes: list[int]


@dataclass
class Timeline:
    """Everything in a file.

    Args:
        rows: names of rows, by uuid; a thread's is (process, thread).
        parents: of rows that have one.
        counters: row -> (ts, value).
    """

    rows: dict[int, Any] = field(default_factory=dict)
    parents: dict[int, int] = field(default_factory=dict)
    slices: list[Slice] = field(default_factory=list)
    counters: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    clocks: dict[int, int] = field(default_factory=dict)

    def arrows(self) -> list[tuple[Slice, Slice]]:
        """(from, to)."""
        begun = {number: one for one in self.slices for number in one.begins}
        return [(begun[number], one) for one in self.slices for number in one.finishes]


def unpacked(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(data)
    if path.suffix == ".zst":
        with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as file:
            return file.read()
    return data


_SIGN, _WRAP = 1 << 63, 1 << 64


class _Reader:
    def __init__(self) -> None:
        self.timeline = Timeline()
        self.words: dict[tuple[int, int, int], str] = {}
        self.clock: dict[int, int] = {}
        self.events: list[tuple[int, int, int, dict[int, list[Any]]]] = []

    def packets(self, data: bytes) -> None:
        for number, packet in fields(data):
            assert number == 1
            assert isinstance(packet, bytes)
            self.packet(message(packet))

    def packet(self, packet: dict[int, list[Any]]) -> None:
        for packed in packet[50]:
            self.packets(zlib.decompress(packed))
        sequence = packet.get(10, [0])[0]
        for snapshot in packet[6]:
            for clock in message(snapshot)[1]:
                entry = message(clock)
                self.timeline.clocks[entry[1][0]] = entry[2][0]
        for defaults in packet[59]:
            self.clock[sequence] = message(defaults)[58][0]
        for interned in packet[12]:
            for kind, entry in fields(interned):
                word = message(entry)
                self.words[sequence, kind, word[1][0]] = word[2][0].decode()
        for descriptor in packet[60]:
            self.descriptor(message(descriptor))
        for event in packet[11]:
            shift = self.timeline.clocks[6] - self.timeline.clocks[self.clock[sequence]]
            self.events.append((packet[8][0] + shift, len(self.events), sequence, message(event)))

    def descriptor(self, found: dict[int, list[Any]]) -> None:
        uuid = found[1][0]
        assert uuid not in self.timeline.rows, "two rows have one uuid"
        if found[3]:
            process = message(found[3][0])
            self.timeline.rows[uuid] = (process[1][0], process[6][0].decode())
        elif found[4]:
            thread = message(found[4][0])
            self.timeline.rows[uuid] = (thread[1][0], thread[2][0], thread[5][0].decode())
        else:
            self.timeline.rows[uuid] = found[2][0].decode()
        if found[5]:
            self.timeline.parents[uuid] = found[5][0]

    def play(self) -> Timeline:
        stacks: dict[int, list[Slice]] = defaultdict(list)
        for ts, _, sequence, event in sorted(self.events, key=lambda one: one[:2]):
            kind, uuid = event[9][0], event[11][0]
            name = self.timeline.rows[uuid]
            row = name if isinstance(name, str) else name[-1]
            if kind == 4:
                self.timeline.counters[row].append((ts, event[30][0]))
                continue
            stack = stacks[uuid]
            if kind == 2:
                ended = stack.pop()
                ended.dur = ts - ended.ts
                continue
            category = self.words[sequence, 1, event[3][0]] if event[3] else None
            one = Slice(
                row, self.words[sequence, 2, event[10][0]], category, ts, None, len(stack),
                dict(self.argument(sequence, message(a)) for a in event[4]),
                [int.from_bytes(n, "little") for n in event[47]],
                [int.from_bytes(n, "little") for n in event[48]],
            )  # fmt: skip
            self.timeline.slices.append(one)
            if kind == 1:
                stack.append(one)
        assert not any(stacks.values()), "a slice has no end"
        return self.timeline

    def argument(self, sequence: int, found: dict[int, list[Any]]) -> tuple[str, Any]:
        key = self.words[sequence, 3, found[1][0]]
        if found[2]:
            return key, bool(found[2][0])
        if found[4]:
            return key, found[4][0] - (_WRAP if found[4][0] >= _SIGN else 0)
        if found[5]:
            return key, struct.unpack("<d", found[5][0])[0]
        return key, self.words[sequence, 29, found[17][0]]


def read_timeline(path: Path) -> Timeline:
    """Decode a file that `convert` wrote."""
    reader = _Reader()
    reader.packets(unpacked(path))
    return reader.play()
