# SPDX-License-Identifier: Apache-2.0
"""How far the clocks of ranks are apart, from the ends of collectives.

All ranks leave a collective together (measured: within 7 us on one host), whenever they entered it.
So the median over matched collectives of the difference of their ends is the clocks' difference.

    rank 0   [--- all-reduce 1 ---]        ends at 100, 220, 340
    rank 1      [-all-reduce 1-]           ends at 150, 271, 389      offset of rank 1: -50
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from megatron.torch_trace.reader import Event, EventBlock
from megatron.torch_trace.times import NO_TIME, block_times
from megatron.torch_trace.vocabulary import category

Key = tuple[str, str, int]
"""(process group, collective, sequence number or how many-th)."""

_POINT_TO_POINT = ("send", "recv", "wait", "coalesced")
_LEAST_MATCHES = 3


@dataclass(slots=True)
class CollectiveEnds:
    """Ends of one rank's collectives, in absolute ns, gathered in order of start."""

    named: list[tuple[int, int, str, str, int | None]] = field(default_factory=list)
    anonymous: list[tuple[int, int, str]] = field(default_factory=list)

    def by_key(self) -> dict[Key, int]:
        """Key of each collective -> its end.

        Kernels that carry no arguments are known by their name; calls without a sequence number by
        how many of their kind came before.
        """
        counts: dict[tuple[str, str], int] = {}
        ends: dict[Key, int] = {}
        rows: list[tuple[int, int, str, str, int | None]] = sorted(self.named)
        if not rows:
            rows = [(start, end, "", name, None) for start, end, name in sorted(self.anonymous)]
        for _, end, group, collective, sequence in rows:
            if sequence is None:
                number = counts.get((group, collective), 0)
                counts[group, collective] = number + 1
            else:
                number = sequence
            ends[group, collective, number] = end
        return ends


def collective_ends(block: EventBlock[Event]) -> CollectiveEnds:
    """The collectives among the kernels of a block, times in ns as in the file."""
    found = CollectiveEnds()
    rows = [
        index
        for index, event in enumerate(block.events)
        if event.ph == "X" and category(event.cat) == "kernel" and _communicates(event)
    ]
    if not rows:
        return found
    ts, dur = block_times(block)
    for index in rows:
        event, args = block.events[index], block.events[index].args
        start, length = int(ts[index]), int(dur[index])
        if NO_TIME in (start, length):
            continue
        if args is not None and args.collective is not None:
            group = f"{args.group_name}/{args.group_ranks}"
            found.named.append((start, start + length, group, args.collective, args.seq))
        else:
            found.anonymous.append((start, start + length, event.name))
    return found


def _communicates(event: Event) -> bool:
    name = event.args.collective if event.args is not None else None
    if name is None:
        name = event.name
        if not name.lower().startswith(("nccl", "rccl", "hccl", "mscclpp")):
            return False
    folded = name.lower()
    return not any(word in folded for word in _POINT_TO_POINT)


def clock_offsets(ends: Mapping[int, Mapping[Key, int]]) -> dict[int, int | None]:
    """What to add to each rank's times so that all agree with the lowest rank, in ns.

    Ranks that share no group are aligned through ranks that share one with both. None for a rank
    that cannot be reached.
    """
    ranks = sorted(ends)
    offsets: dict[int, int | None] = dict.fromkeys(ranks)
    if not ranks:
        return offsets
    offsets[ranks[0]] = 0
    frontier = [ranks[0]]
    while frontier:
        reference = frontier.pop(0)
        base = offsets[reference]
        assert base is not None
        for rank in ranks:
            if offsets[rank] is None:
                difference = _difference(ends[reference], ends[rank])
                if difference is not None:
                    offsets[rank] = base + difference
                    frontier.append(rank)
    return offsets


def _difference(reference: Mapping[Key, int], other: Mapping[Key, int]) -> int | None:
    differences: Sequence[int] = [
        reference[key] - end for key, end in other.items() if key in reference
    ]
    return round(median(differences)) if len(differences) >= _LEAST_MATCHES else None
