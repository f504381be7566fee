# SPDX-License-Identifier: Apache-2.0
"""Events whose fate is known only at the end of the file, kept on disk until then.

An arrow is kept if both its ends are; a kernel, when steps are asked for, if its launch lies in one
of them. Either may stand anywhere in the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap64

from megatron.torch_trace.files.nameless import NamelessFile
from megatron.torch_trace.files.writer import join as join_texts
from megatron.torch_trace.reader.texts import BETWEEN
from megatron.torch_trace.rewrite.arrow_ends import ArrowIds, Ids, among


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
        ids: of all ends, in the order of `texts`.
        texts: the ends, joined as a writer wants them; `sizes` of each, braces included.
    """

    category: str
    ids: list[Ids] = field(default_factory=list)
    sizes: list[NDArray[np.int64]] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)

    def add(self, ids: Ids, texts: list[bytes]) -> None:
        """Add ends of one phase."""
        self.ids.append(ids)
        self.sizes.append(np.fromiter(map(len, texts), dtype=np.int64, count=len(texts)))
        self.texts.append(join_texts(texts))

    def kept(self, whole: BitMap64) -> Decided:
        """The ends whose id is in `whole`."""
        stays, sizes = among(np.concatenate(self.ids), whole), np.concatenate(self.sizes)
        text = join_texts(self.texts)
        if not stays.all():
            ends = np.cumsum(sizes + len(BETWEEN)) - len(BETWEEN)
            bounds = zip((ends - sizes)[stays].tolist(), ends[stays].tolist(), strict=True)
            text, sizes = join_texts([text[start:end] for start, end in bounds]), sizes[stays]
        return Decided(self.category, text, len(sizes), int(sizes.sum()))


class Decided(NamedTuple):
    """Events that are kept: joined text, how many, and their bytes without what joins them."""

    category: str
    text: bytes
    events: int
    size: int


class PendingEvents:
    """Events that wait, on disk.

    Args:
        folder: where to put them.
        ids: of the arrows that are known already; more may be added.
    """

    def __init__(self, folder: Path | None, ids: ArrowIds | None = None) -> None:
        self._arrows: NamelessFile[dict[str, Arrows]] = NamelessFile(folder)
        self._waiting: NamelessFile[list[Waiting]] = NamelessFile(folder)
        self._ids = ArrowIds() if ids is None else ids

    def add_arrows(self, ends: list[tuple[str, str, Ids]], packed: bytes) -> None:
        """Add what is packed of a block's arrows, without unpacking it.

        Args:
            ends: kind, phase and ids of them.
            packed: the pickled `Arrows` by kind.
        """
        for kind, phase, ids in ends:
            self._ids.add(kind, phase, ids)
        if packed:
            self._arrows.add_pickled(packed)

    def add(self, batch: list[Waiting]) -> None:
        if batch:
            self._waiting.add(batch)

    def decided(self, launched: Launched) -> Iterator[Decided]:
        """What is kept: gates that open, arrows of which both ends are kept."""
        for batch in self._waiting:
            for waiting in batch:
                if waiting.flow and _passes(waiting, launched):
                    kind, number, phase = waiting.flow
                    self._ids.add(kind, phase, np.array([number], dtype=np.uint64))
        whole = self._ids.whole()
        for arrows in self._arrows:
            for kind, one in arrows.items():
                yield one.kept(whole[kind])
        for batch in self._waiting:
            by_category: dict[str, list[bytes]] = {}
            for waiting in batch:
                flow = waiting.flow
                if _passes(waiting, launched) and (not flow or flow[1] in whole[flow[0]]):
                    by_category.setdefault(waiting.category, []).append(waiting.text)
            for name, texts in by_category.items():
                yield Decided(name, join_texts(texts), len(texts), sum(map(len, texts)))

    def close(self) -> None:
        self._arrows.close()
        self._waiting.close()


def _passes(waiting: Waiting, launched: Launched) -> bool:
    return waiting.gate is None or launched.opens(waiting.gate)
