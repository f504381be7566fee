# SPDX-License-Identifier: Apache-2.0
"""Events whose fate is known only at the end of the file, kept on disk until then.

An arrow is kept if both its ends are; a kernel, when steps are asked for, if its launch lies in one
of them. Either may stand anywhere in the file. What must be remembered of all events are sets of
ids, a bit or two each.
"""

from __future__ import annotations

import contextlib
import pickle
import tempfile
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap64

from megatron.torch_trace.files.writer import join as join_texts
from megatron.torch_trace.reader.event import Identity
from megatron.torch_trace.reader.texts import BETWEEN

Ids = NDArray[np.uint64]
Ends = tuple[list[Ids], list[Ids]]
"""Ids of the ends at which arrows start, and of those at which they finish."""

_IN_MEMORY_BYTES = 4 << 20


class Gate(NamedTuple):
    """Condition on the launch of an event.

    Args:
        space: `correlation` or `external id`.
        id: the id in that space.
        by_clock: the answer if nothing with that id was launched in the whole file.
    """

    space: str
    id: int
    by_clock: bool


class Waiting(NamedTuple):
    """An event that waits.

    Args:
        text: as it will be written.
        category: for the account.
        gate: its own condition, or that of the slice at which an arrow ends.
        flow: (kind of arrow, id, phase), or None for a slice.
    """

    text: bytes
    category: str
    gate: Gate | None
    flow: tuple[str, int, str] | None


@dataclass(slots=True)
class Launched:
    """Ids of launches, all of them and those that lie inside what was asked for."""

    known: dict[str, BitMap64] = field(default_factory=dict)
    inside: dict[str, BitMap64] = field(default_factory=dict)

    def add(self, space: str, known: list[int], inside: list[int]) -> None:
        self.known.setdefault(space, BitMap64()).update(known)
        self.inside.setdefault(space, BitMap64()).update(inside)

    def opens(self, gate: Gate) -> bool:
        if gate.id in self.inside.get(gate.space, ()):
            return True
        return gate.by_clock and gate.id not in self.known.get(gate.space, ())


@dataclass(slots=True)
class Arrows:
    """Ends of arrows of one kind whose slices are kept, waiting only for their other ends.

    Attributes:
        starts, finishes: ids of the ends in this batch.
        ids: of all ends, in the order of `texts`.
        texts: the ends, joined as a writer wants them; `sizes` of each, braces included.
    """

    category: str
    starts: list[Ids] = field(default_factory=list)
    finishes: list[Ids] = field(default_factory=list)
    ids: list[Ids] = field(default_factory=list)
    sizes: list[NDArray[np.int64]] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)

    def add(self, phase: str, ids: Ids, texts: list[bytes]) -> None:
        """Add ends of one phase."""
        if phase == "s":
            self.starts.append(ids)
        elif phase == "f":
            self.finishes.append(ids)
        self.ids.append(ids)
        self.sizes.append(np.fromiter(map(len, texts), dtype=np.int64, count=len(texts)))
        self.texts.append(join_texts(texts))

    def kept(self, whole: BitMap64) -> Decided:
        """The ends whose id is in `whole`."""
        ids, sizes = np.concatenate(self.ids), np.concatenate(self.sizes)
        text = join_texts(self.texts)
        if not bitmap(ids) <= whole:
            stays = np.array([number in whole for number in ids.tolist()], dtype=bool)
            ends = np.cumsum(sizes + len(BETWEEN)) - len(BETWEEN)
            places = zip((ends - sizes)[stays].tolist(), ends[stays].tolist(), strict=True)
            text, sizes = join_texts([text[start:end] for start, end in places]), sizes[stays]
        return Decided(self.category, text, len(sizes), int(sizes.sum()))


class Decided(NamedTuple):
    """Events that are kept: joined text, how many, and their bytes without what joins them."""

    category: str
    text: bytes
    events: int
    size: int


class Spool:
    """Events that wait, in a nameless file.

    Args:
        folder: of that file.
        ends: kind of arrow -> ids at which such arrows start and finish, where they are known
            already; more of them may be added.
    """

    def __init__(
        self, folder: Path | None, ends: dict[str, tuple[BitMap64, BitMap64]] | None = None
    ) -> None:
        self._file = tempfile.SpooledTemporaryFile(  # noqa: SIM115
            max_size=_IN_MEMORY_BYTES, dir=None if folder is None else str(folder)
        )
        self._batches = 0
        self._packed = 0
        self._ends: dict[str, tuple[BitMap64, BitMap64]] = {} if ends is None else ends

    def add_arrows(self, ends: dict[str, Ends], packed: bytes) -> None:
        """Add what `pack` made of a block's arrows, without unpacking it."""
        for kind, (starts, finishes) in ends.items():
            known = self._ends.setdefault(kind, (BitMap64(), BitMap64()))
            for ids in starts:
                known[0].update(bitmap(ids))
            for ids in finishes:
                known[1].update(bitmap(ids))
        if packed:
            self._file.write(packed)
            self._packed += 1

    def add(self, batch: list[Waiting]) -> None:
        if batch:
            pickle.dump(batch, self._file, protocol=5)
            self._batches += 1

    def decided(self, launched: Launched) -> Iterator[Decided]:
        """What is kept: gates that open, arrows of which both ends are kept."""
        ends = self._ends
        for batch in self._read():
            for waiting in batch:
                if waiting.flow and _passes(waiting, launched):
                    kind, number, phase = waiting.flow
                    starts, finishes = ends.setdefault(kind, (BitMap64(), BitMap64()))
                    if phase == "s":
                        starts.add(number)
                    elif phase == "f":
                        finishes.add(number)
        whole = {kind: starts & finishes for kind, (starts, finishes) in ends.items()}
        for arrows in self._read_packed():
            for kind, one in arrows.items():
                yield one.kept(whole[kind])
        for batch in self._read():
            by_category: dict[str, list[bytes]] = {}
            for waiting in batch:
                flow = waiting.flow
                if _passes(waiting, launched) and (not flow or flow[1] in whole[flow[0]]):
                    by_category.setdefault(waiting.category, []).append(waiting.text)
            for name, texts in by_category.items():
                yield Decided(name, join_texts(texts), len(texts), sum(map(len, texts)))

    def _read(self) -> Iterator[list[Waiting]]:
        for batch in self._read_all():
            if isinstance(batch, list):
                yield batch

    def _read_packed(self) -> Iterator[dict[str, Arrows]]:
        for batch in self._read_all():
            if isinstance(batch, dict):
                yield batch

    def _read_all(self) -> Iterator[list[Waiting] | dict[str, Arrows]]:
        self._file.seek(0)
        for _ in range(self._batches + self._packed):
            yield pickle.load(self._file)

    def close(self) -> None:
        self._file.close()


def pack(arrows: dict[str, Arrows]) -> tuple[dict[str, Ends], bytes]:
    """A block's arrows as `Spool.add_arrows` takes them: ids of the ends, and the rest as bytes."""
    if not arrows:
        return {}, b""
    ends = {kind: (one.starts, one.finishes) for kind, one in arrows.items()}
    for one in arrows.values():
        one.starts, one.finishes = [], []
    return ends, pickle.dumps(arrows, protocol=5)


def _passes(waiting: Waiting, launched: Launched) -> bool:
    return waiting.gate is None or launched.opens(waiting.gate)


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
