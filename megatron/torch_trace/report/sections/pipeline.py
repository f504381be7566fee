# SPDX-License-Identifier: Apache-2.0
"""Each stage's bubble: by step, and by place in 1F1B."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult
from megatron.torch_trace.analysis.results.pipeline_means import (
    PipelineEntry,
    StageMeans,
    by_stage,
    stage_means,
)
from megatron.torch_trace.analysis.timeline.moment import Moment
from megatron.torch_trace.report.section import Section, Subject
from megatron.torch_trace.report.stages import first_and_last
from megatron.torch_trace.report.tables import (
    Cell,
    Column,
    Medium,
    Row,
    Table,
    at,
    in_json,
    ms,
    number,
    rank_cell,
    share,
    text,
)
from megatron.torch_trace.wording import UNKNOWN, ranks

_FEW, _MOST = 32, 256
_HEADING = "PIPELINE (ms, first to last micro-batch; bubble = exposed send/recv + idle)"


def section(subject: Subject) -> Section:
    """Each stage's bubble in each step; of many ranks the means of each stage too."""
    title = "Pipeline"
    entries = [(rank, one) for rank in subject.analysis.ranks for one in rank.pipeline]
    if not entries:
        return Section("pipeline", title, "The traces hold no pipeline communication.")
    entries.sort(key=lambda entry: (entry[1].stage or 0, entry[0].rank, entry[1].step))
    few = len(entries) <= _FEW
    shown = entries if len(entries) <= _MOST else _largest(entries)
    means = [] if few else [_means(by_stage(entries))]
    places = _places(subject.analysis, shown, some=len(shown) < len(entries))
    tables = [*means, _stages(shown, len(entries), Medium.ALL if few else Medium.WRITTEN), places]
    return Section("pipeline", title, tables=tables, data=_drawn(subject))


def _drawn(subject: Subject) -> dict[str, Any]:
    if not subject.draws:
        return {}
    from megatron.torch_trace.report.figures.schedule import schedule_figure

    figure = schedule_figure(subject.analysis)
    return {"schedule": figure} if figure else {}


def _columns(whose: Column) -> tuple[Column, ...]:
    return (
        Column("stage"),
        whose,
        Column("step"),
        Column("micro-batches", hint="m, or m x v with v virtual stages on a rank"),
        Column("length ms", brief="length", hint="from the first to the last micro-batch"),
        Column("compute ms", brief="compute"),
        Column(
            "send/recv ms", brief="send/recv", hint="exposed: the GPU computes nothing meanwhile"
        ),
        Column("idle ms", brief="idle"),
        Column("bubble", hint="exposed send/recv plus idle, share of the length"),
        Column("1F1B ideal", hint="(p-1)/(vm+p-1) for p stages of equal cost"),
    )


def _largest(entries: Sequence[PipelineEntry]) -> list[PipelineEntry]:
    """Of each stage in each step the rank with the largest bubble; they stay in their order."""
    best: dict[tuple[int | None, int], PipelineEntry] = {}
    for entry in entries:
        key = (entry[1].stage, entry[1].step)
        if key not in best or entry[1].bubble_ns > best[key][1].bubble_ns:
            best[key] = entry
    return list(best.values())[:_MOST]


def _stages(shown: Sequence[PipelineEntry], count: int, media: Medium) -> Table:
    rows = []
    for entry in shown:
        rank, one = entry
        moment = Moment(one.start_ns, one.end_ns - one.start_ns)
        whose = rank_cell(rank)
        rows.append(Row(_cells(stage_means([entry]), whose), at(rank.rank, moment)))
    more = count - len(rows)
    rest = ""
    if more:
        rest = (
            f"Each row is the rank with the largest bubble of its stage and step; {in_json(more)}"
        )
    columns = _columns(Column("rank"))
    caption = "Each stage in each step"
    return Table(
        "stages", caption, columns, tuple(rows), rest, brief=_HEADING, limit=_FEW, media=media
    )


def _means(found: Sequence[StageMeans]) -> Table:
    rows = tuple(Row(_cells(one, text(ranks(one.ranks, most=2)))) for one in found[:_MOST])
    more = len(found) - len(rows)
    return Table(
        "stage-means",
        "Each stage in each step, means over its ranks",
        _columns(Column("ranks")),
        rows,
        in_json(more),
        more,
        brief=_HEADING,
        most=_FEW,
    )


def _cells(one: StageMeans, whose: Cell) -> tuple[Cell, ...]:
    ends = dict.fromkeys((*one.microbatches[:1], *one.microbatches[-1:]))
    count = "-".join(map(str, ends)) or UNKNOWN
    if one.microbatches and (one.chunks or 1) > 1:
        count += f" x {one.chunks}"
    parts = (one.compute_ns, one.exposed_pipeline_ns, one.idle_ns)
    return (
        Cell(UNKNOWN if one.stage is None else f"{one.stage} of {one.stages}", sort=one.stage),
        whose,
        number(one.step, str(one.step)),
        Cell(count, sort=one.microbatches[0] if one.microbatches else None),
        ms(one.length_ns),
        *(Cell(UNKNOWN) if part is None else ms(part) for part in parts),
        share(one.bubble_share, "bubble"),
        share(one.ideal_share),
    )


def _places(analysis: Analysis, shown: Sequence[PipelineEntry], *, some: bool) -> Table | None:
    """The bubble by place in 1F1B, where spans of micro-batches tell it."""
    brief = first_and_last(analysis, lambda rank: rank.bubble)
    rows = [
        _place(rank, rank not in brief)
        for rank in {rank.rank: rank for rank, _ in shown}.values()
        if rank.bubble
    ]
    found = [row for group in rows for row in group]
    columns = (
        Column("rank"),
        Column("in 1F1B", number=False),
        Column("micro-batches", hint="forwards and backwards"),
        Column("bubble ms", brief="bubble"),
    )
    more = len(found) - _MOST
    rest = "These are the ranks above; analyze --json has all ranks." if some else ""
    if more > 0:
        rest = in_json(more)
    return Table(
        "places",
        "Bubble by place in 1F1B, before and inside the micro-batches",
        columns,
        tuple(found[:_MOST]),
        rest,
        brief="BUBBLE BY PLACE IN 1F1B (ms, before and inside the micro-batches)",
        told="",
        limit=_FEW,
    )


def _place(rank: RankResult, spare: bool) -> list[Row]:
    return [
        Row(
            (
                rank_cell(rank),
                text(row.place),
                number(row.microbatches, str(row.microbatches)),
                ms(row.bubble_ns),
            ),
            spare=spare,
        )
        for row in rank.bubble
    ]
