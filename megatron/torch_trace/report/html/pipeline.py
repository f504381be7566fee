# SPDX-License-Identifier: Apache-2.0
"""Each stage's bubble: by step, and by place in 1F1B."""

from __future__ import annotations

from megatron.torch_trace.analysis.moments import Moment
from megatron.torch_trace.analysis.pipeline import PipelineStep
from megatron.torch_trace.analysis.results import Analysis, RankResult
from megatron.torch_trace.report.html.parts import (
    Cell,
    Column,
    Row,
    Section,
    Table,
    at,
    ms,
    number,
    share,
    text,
)
from megatron.torch_trace.report.words import UNKNOWN

_MOST = 256


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
        Column("micro-batches"),
        Column("length ms", hint="from the first to the last micro-batch"),
        Column("compute ms"),
        Column("send/recv ms", hint="exposed: nothing computes beside it"),
        Column("idle ms"),
        Column("bubble", hint="exposed send/recv and idle, of the length"),
        Column("1F1B ideal", hint="(p-1)/(m+p-1) for stages of equal cost"),
    )
    if len(entries) > _MOST:
        entries = sorted(entries, key=lambda entry: -entry[1].bubble_ns)
    rows = tuple(_pipeline_row(rank, one) for rank, one in entries[:_MOST])
    more = len(entries) - len(rows)
    rest = f"The largest bubbles; {more:,} rows more are in analyze --json." if more else ""
    table = Table("stages", "Each stage in each step", columns, rows, rest)
    places = _places(analysis)
    return Section("pipeline", title, data={"table": table, "places": places})


def _pipeline_row(rank: RankResult, one: PipelineStep) -> Row:
    stage = UNKNOWN if one.stage is None else f"{one.stage} of {one.stages}"
    count = UNKNOWN if one.microbatches is None else str(one.microbatches)
    cells = (
        Cell(stage, sort=one.stage),
        number(rank.rank, str(rank.rank)),
        number(one.step, str(one.step)),
        Cell(count, sort=one.microbatches),
        ms(one.end_ns - one.start_ns),
        ms(one.compute_ns),
        ms(one.exposed_pipeline_ns),
        ms(one.idle_ns),
        share(None if rank.unknown else one.bubble_share, "idle"),
        share(one.ideal_share),
    )
    return Row(cells, at(rank.rank, Moment(one.start_ns, one.end_ns - one.start_ns)))


def _places(analysis: Analysis) -> Table | None:
    """The bubble by place in 1F1B, where spans of micro-batches tell it."""
    rows = [
        Row(
            (
                number(rank.rank, str(rank.rank)),
                text(row.place),
                number(row.microbatches, str(row.microbatches)),
                ms(row.bubble_ns),
            )
        )
        for rank in analysis.ranks
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
    rest = f"{more:,} rows more are in analyze --json." if more > 0 else ""
    caption = "The bubble before and inside the micro-batches of each place"
    return Table("places", caption, columns, tuple(rows[:_MOST]), rest)
