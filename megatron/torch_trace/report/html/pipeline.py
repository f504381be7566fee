# SPDX-License-Identifier: Apache-2.0
"""Each stage's bubble: by step, and by place in 1F1B."""

from __future__ import annotations

from collections.abc import Sequence

from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult
from megatron.torch_trace.analysis.schedule.pipeline import PipelineStep
from megatron.torch_trace.analysis.timeline.moment import Moment
from megatron.torch_trace.report.tables import (
    Cell,
    Column,
    Row,
    Section,
    Table,
    at,
    ms,
    number,
    rank_cell,
    share,
    text,
)
from megatron.torch_trace.wording import UNKNOWN

_MOST = 256

Entry = tuple[RankResult, PipelineStep]
"""A rank and one of its steps."""


def section(analysis: Analysis) -> Section:
    """Each stage's bubble in each step."""
    title = "Pipeline"
    entries = [(rank, one) for rank in analysis.ranks for one in rank.pipeline]
    if not entries:
        return Section("pipeline", title, "the traces hold no pipeline communication")
    entries.sort(key=lambda entry: (entry[1].stage or 0, entry[0].rank, entry[1].step))
    columns = (
        Column("stage"),
        Column("rank"),
        Column("step"),
        Column("micro-batches", hint="m; times v, the virtual stages of an interleaved rank"),
        Column("length ms", hint="from the first to the last micro-batch"),
        Column("compute ms"),
        Column("send/recv ms", hint="exposed: nothing computes beside it"),
        Column("idle ms"),
        Column("bubble", hint="exposed send/recv and idle, of the length"),
        Column("1F1B ideal", hint="(p-1)/(vm+p-1) for stages of equal cost"),
    )
    shown = entries if len(entries) <= _MOST else _largest(entries)
    rows = tuple(_pipeline_row(rank, one) for rank, one in shown)
    more = len(entries) - len(rows)
    rest = ""
    if more:
        rest = (
            "Of each stage in each step the rank with the largest bubble; "
            f"{more:,} rows more are in analyze --json."
        )
    table = Table("stages", "Each stage in each step", columns, rows, rest)
    places = _places(list({rank.rank: rank for rank, _ in shown}.values()), some=bool(more))
    return Section("pipeline", title, data={"table": table, "places": places})


def _largest(entries: Sequence[Entry]) -> list[Entry]:
    """Of each stage in each step the rank with the largest bubble; they stay in their order."""
    best: dict[tuple[int | None, int], Entry] = {}
    for entry in entries:
        key = (entry[1].stage, entry[1].step)
        if key not in best or entry[1].bubble_ns > best[key][1].bubble_ns:
            best[key] = entry
    return list(best.values())[:_MOST]


def _pipeline_row(rank: RankResult, one: PipelineStep) -> Row:
    stage = UNKNOWN if one.stage is None else f"{one.stage} of {one.stages}"
    count = UNKNOWN if one.microbatches is None else str(one.microbatches)
    if one.microbatches and (one.chunks or 1) > 1:
        count += f" x {one.chunks}"
    cells = (
        Cell(stage, sort=one.stage),
        rank_cell(rank),
        number(one.step, str(one.step)),
        Cell(count, sort=one.microbatches),
        ms(one.end_ns - one.start_ns),
        *(
            Cell(UNKNOWN) if rank.unknown else ms(part)
            for part in (one.compute_ns, one.exposed_pipeline_ns, one.idle_ns)
        ),
        share(None if rank.unknown else one.bubble_share, "bubble"),
        share(one.ideal_share),
    )
    return Row(cells, at(rank.rank, Moment(one.start_ns, one.end_ns - one.start_ns)))


def _places(shown: Sequence[RankResult], *, some: bool) -> Table | None:
    """The bubble by place in 1F1B, where spans of micro-batches tell it."""
    rows = [
        Row(
            (
                rank_cell(rank),
                text(row.place),
                number(row.microbatches, str(row.microbatches)),
                ms(row.bubble_ns),
            )
        )
        for rank in shown
        for row in rank.bubble
    ]
    if not rows:
        return None
    columns = (
        Column("rank"),
        Column("in 1F1B", number=False),
        Column("micro-batches", hint="forwards and backwards"),
        Column("bubble ms"),
    )
    more = len(rows) - _MOST
    rest = "Of the ranks above; those of the others are in analyze --json." if some else ""
    if more > 0:
        rest = f"{more:,} rows more are in analyze --json."
    caption = "The bubble before and inside the micro-batches of each place"
    return Table("places", caption, columns, tuple(rows[:_MOST]), rest)
