# SPDX-License-Identifier: Apache-2.0
"""Whether a trace has every forward and backward of an iteration exactly once.

A pass is a forward or a backward of one micro-batch through one model chunk. It is one span. Where
combined 1F1B lets two passes take turns, the pass is parts instead, as many as any other pass of
this direction and chunk that takes turns: Megatron gives every micro-batch the same nodes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

_SPAN = re.compile(
    r"(?P<direction>forward|backward) micro-batch(?: (?P<number>\d+))?(?: of \w+)?"
    r"(?: chunk (?P<chunk>\d+))?(?: \(\w+\))?(?P<part>, part)?"
)


class Pass(NamedTuple):
    """A forward or a backward of one micro-batch through one model chunk.

    Args:
        direction: forward or backward.
        number: of the micro-batch, None where its span has none.
        chunk: virtual stage, None where the rank has one.
    """

    direction: str
    number: int | None
    chunk: int | None

    def __str__(self) -> str:
        number = "" if self.number is None else f" {self.number}"
        chunk = "" if self.chunk is None else f" chunk {self.chunk}"
        return f"{self.direction} micro-batch{number}{chunk}"


class Expected(NamedTuple):
    """What the traces of one iteration should have.

    Args:
        ranks: how many train.
        microbatches: of an iteration.
        chunks: of the model on a rank.
        turns: whether a forward and a backward may take turns.
    """

    ranks: int = 2
    microbatches: int = 2
    chunks: int = 1
    turns: bool = False


TWO_RANKS = Expected()


class Passes(NamedTuple):
    """What a trace has of the passes of one iteration.

    Args:
        found: how many passes there are, by direction.
        faults: what is missing or there too often, in words; empty if every pass is there once.
    """

    found: dict[str, int]
    faults: list[str]


def passes(events: Iterable[Mapping[str, Any]], expected: Expected) -> Passes:
    """Count the passes of one iteration.

    Args:
        events: of the trace of one rank.
        expected: what there should be.
    """
    whole: Counter[Pass] = Counter()
    parts: Counter[Pass] = Counter()
    for event in events:
        named = _SPAN.fullmatch(str(event.get("name")))
        if named is not None and event.get("cat") == "user_annotation" and event.get("ph") == "X":
            number, chunk = (int(one) if one else None for one in named.group("number", "chunk"))
            counted = parts if named["part"] else whole
            counted[Pass(named["direction"], number, chunk)] += 1
    wanted = [
        Pass(direction, number, chunk)
        for direction in ("forward", "backward")
        for chunk in (range(expected.chunks) if expected.chunks > 1 else (None,))
        for number in range(expected.microbatches)
    ]
    there = {*whole, *parts}
    faults = [f"no {one}" for one in wanted if one not in there]
    faults += [f"unexpected {one}" for one in sorted(there - {*wanted}, key=str)]
    faults += [f"{one} {times} times" for one, times in whole.items() if times > 1]
    faults += [f"{one} whole and in parts" for one in whole if one in parts]
    faults += _unequal(parts) if expected.turns else [f"{one} in parts" for one in parts]
    found = Counter(one.direction for one in there)
    return Passes({direction: found[direction] for direction in ("forward", "backward")}, faults)


def _unequal(parts: Mapping[Pass, int]) -> list[str]:
    """Passes with more or fewer parts than most others of their direction and chunk."""
    kinds: dict[tuple[str, int | None], list[Pass]] = {}
    for one in parts:
        kinds.setdefault((one.direction, one.chunk), []).append(one)
    faults = []
    for alike in kinds.values():
        usual = Counter(parts[one] for one in alike).most_common(1)[0][0]
        faults += [
            f"{one} in {parts[one]} parts instead of {usual}"
            for one in alike
            if parts[one] != usual
        ]
    return faults
