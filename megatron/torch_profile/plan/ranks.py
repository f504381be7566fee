# SPDX-License-Identifier: Apache-2.0
"""Rank expressions: what `--torch-profile-ranks` may say, and which ranks it means.

    0 1            these global ranks          8-63:8    every eighth of 8 to 63
    0-7,64         lists within a word         all       every rank
    last           world size - 1              per-node  the first rank of every node
    tp=0,dp=0      all that match every coordinate: here each pipeline stage of one model copy
    pp=first       a coordinate may be a number, first or last

Several words are a union. The one source of coordinates is Megatron itself (topology.py).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from megatron.torch_profile.config import flag_of
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.format.rank_ranges import rank_range

DIMENSIONS = ("tp", "pp", "dp", "cp", "ep")
_COORDINATE = re.compile(rf"(?P<dimension>{'|'.join(DIMENSIONS)})=(?P<index>\d+|first|last)")
_FLAG = flag_of("ranks")


@dataclass(frozen=True, slots=True)
class Layout:
    """How many ranks there are and how they are laid out, as far as it is known.

    Args:
        world_size: number of ranks.
        sizes: size of each parallel dimension; ep is a subdivision of dp and cp.
    """

    world_size: int
    sizes: Mapping[str, int]

    def __str__(self) -> str:
        dimensions = [d for d in ("tp", "cp", "pp", "dp", "ep") if d in self.sizes]
        product = " x ".join(f"{d} {self.sizes[d]}" for d in dimensions if d != "ep")
        expert = self.sizes.get("ep", 1)
        ep = f", ep {expert}" if expert > 1 else ""
        return f"world size {self.world_size}" + (f" = {product}{ep}" if product else "")


class Located(Protocol):
    """One rank and where it stands: its node's name and its index in each parallel dimension."""

    @property
    def rank(self) -> int:
        """Global rank."""

    @property
    def host(self) -> str:
        """Name of its node."""

    @property
    def coordinates(self) -> Mapping[str, int]:
        """Index in each dimension of `DIMENSIONS` that Megatron knows."""


def check(words: Sequence[str], layout: Layout) -> None:
    """Refuse an expression that cannot be right, before anything is built.

    Raises:
        UsageError: a word that means nothing, a rank or coordinate out of range, a rank given
            twice, or nothing at all.
    """
    numbers: list[int] = []
    for word in words:
        if word in ("all", "last", "per-node"):
            if word == "all" and len(words) > 1:
                raise _error(words, "all already means every rank, give it alone", layout)
        elif "=" in word:
            for dimension, index in _coordinates(word, words, layout):
                size = layout.sizes.get(dimension)
                if size is not None and isinstance(index, int) and index >= size:
                    raise _error(words, f"{dimension} must be 0 to {size - 1}", layout)
        else:
            numbers += _numbers(word, words, layout)
    if not words:
        raise _error(words, "no rank given", layout)
    twice = [rank for rank, times in Counter(numbers).items() if times > 1]
    if twice:
        raise _error(words, f"rank {min(twice)} is given twice", layout)


def resolve(words: Sequence[str], layout: Layout, ranks: Iterable[Located]) -> tuple[int, ...]:
    """The ranks that an expression means, in ascending order.

    Args:
        words: the expression; `check` has accepted it.
        layout: for messages and for `first`/`last` of a dimension.
        ranks: every rank, in any order.

    Raises:
        UsageError: as `check`, or when no rank matches.
    """
    check(words, layout)
    everyone = sorted(ranks, key=lambda one: one.rank)
    chosen: set[int] = set()
    for word in words:
        if word == "all":
            chosen.update(one.rank for one in everyone)
        elif word == "last":
            chosen.add(layout.world_size - 1)
        elif word == "per-node":
            first_of_node: dict[str, int] = {}
            for one in everyone:
                first_of_node.setdefault(one.host, one.rank)
            chosen.update(first_of_node.values())
        elif "=" in word:
            wanted = _coordinates(word, words, layout)
            matching = [one.rank for one in everyone if _matches(one, wanted, layout)]
            if not matching:
                raise _error(words, f"no rank has {word}", layout)
            chosen.update(matching)
        else:
            chosen.update(_numbers(word, words, layout))
    return tuple(sorted(chosen))


def _numbers(word: str, words: Sequence[str], layout: Layout) -> list[int]:
    ranks: list[int] = []
    for part in word.split(","):
        if part in ("all", "last", "per-node"):
            raise _error(words, f"{part} must be a word of its own", layout)
        found = rank_range(part)
        if found is None:
            raise _error(
                words,
                f"{part!r} is none of a rank, a range (0-7, 8-63:8), all, last, per-node or "
                "parallel coordinates (tp=0,dp=0)",
                layout,
            )
        if not found:
            raise _error(words, f"the range {part} is empty", layout)
        if found.stop > layout.world_size:
            raise _error(words, f"ranks must be 0 to {layout.world_size - 1}", layout)
        ranks += found
    return ranks


def _coordinates(word: str, words: Sequence[str], layout: Layout) -> list[tuple[str, int | str]]:
    wanted: list[tuple[str, int | str]] = []
    for part in word.split(","):
        match = _COORDINATE.fullmatch(part)
        if not match:
            raise _error(
                words,
                f"{part!r} is no parallel coordinate; write {', '.join(DIMENSIONS[:-1])} or "
                f"{DIMENSIONS[-1]} with a number, first or last, such as tp=0 or pp=last",
                layout,
            )
        dimension, index = match["dimension"], match["index"]
        if any(dimension == other for other, _ in wanted):
            raise _error(words, f"{dimension} is given twice in {word}", layout)
        wanted.append((dimension, int(index) if index.isdigit() else index))
    return wanted


def _matches(rank: Located, wanted: list[tuple[str, int | str]], layout: Layout) -> bool:
    for dimension, index in wanted:
        at = rank.coordinates.get(dimension, 0)
        target = {"first": 0, "last": layout.sizes.get(dimension, 1) - 1}.get(str(index), index)
        if at != target:
            return False
    return True


def _error(words: Sequence[str], reason: str, layout: Layout) -> UsageError:
    return UsageError(f"{_FLAG} {' '.join(words)}: {reason} ({layout}).".replace(" :", ":"))
