# SPDX-License-Identifier: Apache-2.0
"""The curves of a page as data: all ranks on one clock and on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from megatron.torch_trace.allocator.holders import NO_STACK
from megatron.torch_trace.allocator.pictures.curves import Curves
from megatron.torch_trace.allocator.pictures.picture import MemoryPicture
from megatron.torch_trace.allocator.purpose.categories import Category
from megatron.torch_trace.allocator.ranks.stages import RankMemory, stages_of
from megatron.torch_trace.wording import duration, size, visible

MOST_CHARTS = 16
_KIB = 1024
_HOLDERS = 3
ORDER = (
    Category.PARAMETERS,
    Category.GRADIENTS,
    Category.OPTIMIZER_STATE,
    Category.UNKNOWN,
    Category.COMMUNICATION,
    Category.OTHER,
    Category.ACTIVATIONS,
    Category.TEMPORARIES,
)
"""What stays lies below what comes and goes."""


@dataclass(frozen=True, slots=True)
class DrawnRank:
    """A rank with its picture."""

    rank: RankMemory
    picture: MemoryPicture

    @property
    def title(self) -> str:
        """`Stage 1, rank 2`, `rank 2`, or the name of the file."""
        answer, stage = self.rank.answer, self.rank.facts.stage
        if answer.rank is None:
            return visible(answer.path.name)
        of_stage = "" if stage is None else f"stage {stage}, "
        return f"{of_stage}rank {answer.rank}"


def chosen(drawn: Sequence[DrawnRank]) -> list[DrawnRank]:
    """Who is drawn, by stage and rank: of many the fullest of each stage, then the fullest."""
    fullest = {id(one.fullest) for one in stages_of([one.rank for one in drawn])}
    ordered = sorted(
        drawn, key=lambda one: (id(one.rank) not in fullest, -one.rank.answer.peak_bytes)
    )
    kept = ordered[:MOST_CHARTS]
    return sorted(
        kept, key=lambda one: (one.rank.facts.stage or 0, one.rank.answer.rank or 0, one.title)
    )


def chart_data(drawn: Sequence[DrawnRank]) -> dict[str, Any]:
    """What the page's script draws; sizes in KiB, times in us.

    Args:
        drawn: at least one.
    """
    curves = [one.picture.curves for one in drawn]
    timed = all(one.timed for one in curves)
    shared = is_one_clock(drawn)
    first = min(int(one.times[0]) for one in curves)
    charts = [
        _chart(number, one, first if shared else int(one.picture.curves.times[0]), timed=timed)
        for number, one in enumerate(drawn)
    ]
    present = {name for chart in charts for name in chart["categories"]}
    return {
        "timed": timed,
        "start": min(chart["times"][0] for chart in charts),
        "end": max(chart["times"][-1] for chart in charts) or 1,
        "most": max(
            max(int(one.picture.curves.reserved.max()), one.rank.answer.peak_bytes) for one in drawn
        ),
        "capacity": max((one.rank.facts.capacity or 0 for one in drawn), default=0),
        "categories": [one.value for one in ORDER if one.value in present],
        "charts": charts,
    }


def is_one_clock(drawn: Sequence[DrawnRank]) -> bool:
    """Whether the histories overlap in time; else each one counts from its own begin."""
    curves = [one.picture.curves for one in drawn]
    starts, ends = [int(one.times[0]) for one in curves], [int(one.times[-1]) for one in curves]
    return all(one.timed for one in curves) and max(starts) < min(ends)


def said(one: DrawnRank) -> str:
    """The line beside a chart's title."""
    answer, facts = one.rank.answer, one.rank.facts
    parts = [f"peak {size(answer.peak_bytes)}", f"reserved {size(answer.peak_reserved)}"]
    curves = one.picture.curves
    if curves.timed:
        parts[0] += f" after {duration(int(curves.times[curves.peak] - curves.times[0]))}"
    if facts.words:
        parts.append(visible(facts.words))
    return ", ".join(parts)


def holders_in_words(one: DrawnRank) -> list[str]:
    """The largest holders at the peak."""
    return [
        f"{visible(holder.module) or NO_STACK} {size(holder.size)}"
        for holder in one.rank.answer.holders[:_HOLDERS]
    ]


def _chart(number: int, one: DrawnRank, start: int, *, timed: bool) -> dict[str, Any]:
    curves = _drawable(one.picture.curves)
    return {
        "id": number,
        "times": _times(curves, start, timed=timed),
        "categories": {name.value: _kib(values) for name, values in curves.categories.items()},
        "reserved": _kib(curves.reserved),
        "peak": curves.peak,
        "peak_bytes": one.rank.answer.peak_bytes,
        "capacity": one.rank.facts.capacity,
        "ranges": [
            [r.kind, visible(r.label), (r.start - start) // 1000, (r.end - start) // 1000]
            for r in curves.ranges
            if timed
        ],
    }


def _drawable(curves: Curves) -> Curves:
    """A single moment, which a snapshot without a history is, becomes a short line."""
    if len(curves.times) > 1:
        return curves
    return replace(
        curves,
        times=np.append(curves.times, curves.times + 1),
        categories={one: np.repeat(values, 2) for one, values in curves.categories.items()},
        reserved=np.repeat(curves.reserved, 2),
    )


def _times(curves: Curves, start: int, *, timed: bool) -> list[int]:
    """In us; numbers of points where a history has no times."""
    if not timed:
        return list(range(len(curves.times)))
    times: list[int] = ((curves.times - start) // 1000).tolist()
    return times


def _kib(values: Any) -> list[int]:
    found: list[int] = (values // _KIB).tolist()
    return found
