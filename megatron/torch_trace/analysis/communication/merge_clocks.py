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

import msgspec

from megatron.torch_trace.columns.block_times import block_times
from megatron.torch_trace.format.categories import category
from megatron.torch_trace.format.communication_names import ends_together, is_communication
from megatron.torch_trace.format.times import NO_TIME
from megatron.torch_trace.reader import Args, EventBlock
from megatron.torch_trace.reader.event import Number, decode_loosely

Key = tuple[str, str, int]
"""(process group, collective, sequence number or how many-th)."""

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


class KernelEvent(msgspec.Struct, gc=False):
    """An event whose arguments are still text: only those of collectives are of interest."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: Number = None
    dur: Number = None
    args: msgspec.Raw = msgspec.Raw()


def collective_ends(block: EventBlock[KernelEvent]) -> CollectiveEnds:
    """The collectives among the kernels of a block, times in ns as in the file."""
    found = CollectiveEnds()
    rows: list[tuple[int, Args]] = []
    for index, event in enumerate(block.events):
        if event.ph == "X" and category(event.cat) == "kernel":
            args = _arguments(event)
            if args is not None and ends_together(args.collective or event.name):
                rows.append((index, args))
    if not rows:
        return found
    ts, dur = block_times(block)
    for index, args in rows:
        start, length = int(ts[index]), int(dur[index])
        if NO_TIME in (start, length):
            continue
        if args.collective is not None:
            group = f"{args.group_name}/{args.group_ranks}"
            found.named.append((start, start + length, group, args.collective, args.seq))
        else:
            found.anonymous.append((start, start + length, block.events[index].name))
    return found


def _arguments(event: KernelEvent) -> Args | None:
    """Of a kernel that communicates, else None."""
    text = bytes(event.args)
    if b'"Collective name"' in text:
        return decode_loosely(text, Args)
    return Args() if is_communication(event.name) else None


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
