# SPDX-License-Identifier: Apache-2.0
"""The page from ranks and their pictures: one file, nothing loaded from anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from jinja2 import Environment
from markupsafe import Markup, escape

from megatron.torch_trace.allocator.holders import NO_STACK, Holder
from megatron.torch_trace.allocator.pictures.icicle import Node, icicle_of
from megatron.torch_trace.allocator.pictures.segment_map import Piece, SegmentMap
from megatron.torch_trace.allocator.ranks.rank_findings import findings_of_all
from megatron.torch_trace.allocator.ranks.stages import RankMemory, stages_of
from megatron.torch_trace.report.html.environment import asset, environment
from megatron.torch_trace.report.html.policy import policy
from megatron.torch_trace.report.memory.charts import (
    ORDER,
    DrawnRank,
    chart_data,
    chosen,
    holders_in_words,
    is_one_clock,
    said,
)
from megatron.torch_trace.version import __version__
from megatron.torch_trace.wording import counted, size, visible

_PACKAGE = "megatron.torch_trace.report.memory"
_own = partial(asset, package=_PACKAGE)
_UPLOT = "1.6.32"
_MOST_DETAILS = 4
_HOLDERS = 25
_MARKS = {
    "step": "step",
    "forward": "forward of a micro-batch",
    "backward": "backward of a micro-batch",
    "optimizer": "optimizer",
    "phase": "other phase",
}


@dataclass(frozen=True, slots=True)
class _Chart:
    id: int
    title: str
    said: str
    holders: list[str]


@dataclass(frozen=True, slots=True)
class _Rect:
    row: int
    x: float
    width: float
    colour: str
    said: str
    begins: bool


@dataclass(frozen=True, slots=True)
class _Segments:
    rows: int
    pieces: list[_Rect]


@dataclass(frozen=True, slots=True)
class _Detail:
    title: str
    icicle: Node
    holders: tuple[Holder, ...]
    more: str
    segments: _Segments | None
    segments_said: str


def render_memory_page(drawn: Sequence[DrawnRank], title: str) -> str:
    """Memory of all ranks as one HTML page.

    Args:
        drawn: at least one rank.
        title: what the user named.
    """
    ranks = [one.rank for one in drawn]
    shown = chosen(drawn)
    data = chart_data(shown)
    kinds = {kind for chart in data["charts"] for kind, *_ in chart["ranges"]}
    scripts = [f"/*!\n{_own('uplot.LICENSE')}*/\n{_own('uplot.min.js')}", _own("memory.js")]
    return (
        _environment()
        .get_template("memory.html")
        .render(
            title=visible(title),
            head=list(_head(ranks)),
            findings=findings_of_all(ranks),
            categories=[one for one in ORDER if one.value in data["categories"]],
            capacity=data["capacity"],
            starts_at_capacity=2 * data["most"] > data["capacity"] > 0,
            marks=[(kind, words) for kind, words in _MARKS.items() if kind in kinds],
            notes=list(_notes(drawn, shown)),
            charts=[
                _Chart(number, _begun(one.title), said(one), holders_in_words(one))
                for number, one in enumerate(shown)
            ],
            ranks=ranks,
            located=any(one.facts.words for one in ranks),
            details=[_detail(one) for one in _detailed(drawn)],
            unrecorded=NO_STACK,
            footer=f"torch-trace {__version__} wrote this page.",
            uplot=_UPLOT,
            style=Markup(_own("uplot.min.css") + asset("colours.css") + _own("memory.css")),
            curves=_json(data),
            scripts=[Markup(script) for script in scripts],
            policy=policy(scripts, served=False),
        )
    )


def _begun(words: str) -> str:
    return words[:1].upper() + words[1:] if words.startswith(("rank ", "stage ")) else words


def _head(ranks: Sequence[RankMemory]) -> Iterable[str]:
    full = max(ranks, key=lambda one: one.answer.peak_bytes)
    stages = stages_of(ranks)
    whose = "" if len(ranks) == 1 else f" on {_name(full)}, the fullest of {len(ranks)} ranks"
    of = f" in {len(stages)} stages" if stages else ""
    yield (
        f"Peak: {size(full.answer.peak_bytes)} in use{whose}{of}; torch had at most "
        f"{size(full.answer.peak_reserved)} from CUDA."
    )


def _name(one: RankMemory) -> str:
    return visible(one.answer.path.name) if one.answer.rank is None else f"rank {one.answer.rank}"


def _notes(drawn: Sequence[DrawnRank], shown: Sequence[DrawnRank]) -> Iterable[str]:
    if len(shown) < len(drawn):
        yield (
            f"Of {len(drawn)} ranks {len(shown)} are drawn: the fullest one of each stage, then "
            "the fullest others. The table has all."
        )
    if len(shown) > 1 and not is_one_clock(shown):
        yield "The histories do not overlap in time: each one counts from its own begin."
    if not any(one.rank.answer.entries for one in shown):
        yield "There is no history: this is the moment of the snapshot."
        return
    if not all(one.picture.curves.timed for one in shown):
        yield "The history has no times: the axis counts its entries."
    yield (
        "All axes are the same. Drag to look closer, double-click for everything; the peak of each "
        "slice of time is kept."
    )


def _detailed(drawn: Sequence[DrawnRank]) -> list[DrawnRank]:
    """The fullest rank first, then the fullest of each stage."""
    by_peak = sorted(drawn, key=lambda one: -one.rank.answer.peak_bytes)
    fullest = {id(one.fullest) for one in stages_of([one.rank for one in drawn])}
    found = [by_peak[0], *(one for one in by_peak[1:] if id(one.rank) in fullest)]
    return found[:_MOST_DETAILS]


def _detail(one: DrawnRank) -> _Detail:
    answer, segments = one.rank.answer, one.picture.segments
    more = max(0, len(answer.holders) - _HOLDERS)
    return _Detail(
        title=_begun(one.title),
        icicle=icicle_of(answer.holders),
        holders=answer.holders[:_HOLDERS],
        more=f"{counted(more, 'more holder')}: torch-trace memory --top or --json." if more else "",
        segments=_rows(segments) if segments else None,
        segments_said=_segments_said(one, segments) if segments else "",
    )


def _segments_said(one: DrawnRank, found: SegmentMap) -> str:
    free = one.rank.answer.fragmentation
    parts = [f"{size(found.row_bytes)} a row, a stroke where a segment begins"]
    if free:
        parts.append(f"{counted(free.segments, 'segment')}, {size(free.reserved)}")
        if free.scattered:
            parts.append(
                f"{size(free.scattered)} free between blocks in use, the largest free piece "
                f"{size(free.largest_free)}"
            )
    if found.left_out:
        parts.append(
            f"{counted(found.left_out, 'segment')} ({size(found.left_out_bytes)}) not drawn"
        )
    return "; ".join(parts)


def _rows(found: SegmentMap) -> _Segments:
    scale = 1000 / found.row_bytes
    return _Segments(
        found.rows,
        [
            _Rect(
                one.row,
                round(one.start * scale, 2),
                round(one.size * scale, 2),
                one.category.value if one.category else "free",
                _piece_said(one),
                one.begins,
            )
            for one in found.pieces
        ],
    )


def _piece_said(one: Piece) -> str:
    what = one.category.words if one.category else "free"
    waits = ", waits for a stream" if one.waits else ""
    return (
        f"{size(one.size)} {what}{waits}, {counted(one.blocks, 'block')} "
        f"(segment of {size(one.segment)})"
    )


def _json(data: dict[str, Any]) -> Markup:
    """Nothing in it can end the element that it stands in."""
    text = json.dumps(data, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


@cache
def _environment() -> Environment:
    found = environment((_PACKAGE, "templates"))
    found.filters["size"] = size
    found.filters["frame"] = lambda frame: frame.rpartition("/")[2]
    found.filters["prose"] = _prose
    return found


def _prose(sentence: str) -> Markup:
    """What stands in backticks is code."""
    parts = visible(sentence).split("`")
    marked = [
        Markup("<code>{}</code>").format(p) if n % 2 else escape(p) for n, p in enumerate(parts)
    ]
    return Markup("").join(marked)
