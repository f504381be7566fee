# SPDX-License-Identifier: Apache-2.0
"""Why the GPUs were idle, and how their work was launched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult
from megatron.torch_trace.report.idle_words import IDLE_CAUSES
from megatron.torch_trace.report.section import Section, Subject
from megatron.torch_trace.report.sections.breakdown import FEW
from megatron.torch_trace.report.tables import (
    Cell,
    Column,
    Row,
    Table,
    amount,
    in_json,
    ms,
    number,
    rank_cell,
    some_ms,
)
from megatron.torch_trace.wording import NONE, UNKNOWN, column, microseconds, percent

_CAUSES_FROM = 3
"""Columns before those of the causes."""
_LEGEND = tuple((words.colour, words.sentence) for words in IDLE_CAUSES)
_LEFT_OUT = "The least and the most idle ranks; --rank R or --json shows {}."


def section(subject: Subject) -> Section:
    """Of every rank, or of the least and the most idle of many."""
    analysis, title = subject.analysis, "Idle time"
    if analysis.is_of_the_cpu:
        return Section("idle_time", title, "The traces are of no GPU.")
    shown = [
        rank
        for rank in analysis.ranks
        if len(analysis.ranks) <= FEW or rank.rank in analysis.summary.extremes
    ]
    more = len(analysis.ranks) - len(shown)
    tables = [_idle(analysis, shown, more), _launches(analysis, shown, more)]
    return Section("idle_time", title, tables=tables, legend=_LEGEND)


def _of_ranks(analysis: Analysis, table: Table, shown: Sequence[RankResult], more: int) -> Table:
    """The table with what it does not show."""
    extremes = analysis.summary.extremes
    rows = tuple(
        replace(row, spare=rank.rank not in extremes)
        for row, rank in zip(table.rows, shown, strict=True)
    )
    rest = f"These are the least and the most idle ranks; {in_json(more, 'rank')}"
    return replace(
        table,
        rows=rows,
        rest=rest if more else "",
        more=more,
        told=_LEFT_OUT,
        each="rank",
        limit=40,
    )


def _idle(analysis: Analysis, shown: Sequence[RankResult], more: int) -> Table:
    columns = (
        Column("rank"),
        Column("why idle", number=False, brief=None),
        Column("idle ms", brief="idle", sums="ms"),
        *(
            Column(f"{words.title} ms", hint=words.sentence, brief=words.brief, sums="ms")
            for words in IDLE_CAUSES
        ),
    )
    rows = tuple(Row((rank_cell(rank), *_causes(rank))) for rank in shown)
    caption = "Why the GPU was idle (bar: share of the window)"
    table = Table("idle", caption, columns, rows, brief="WHY THE GPU WAS IDLE (ms)")
    return _of_ranks(analysis, table, shown, more).without_empty(_CAUSES_FROM)


def _causes(rank: RankResult) -> tuple[Cell, ...]:
    idle, length = rank.host.idle, rank.window_ns
    if rank.unknown or not length:
        return (Cell(UNKNOWN),) * (_CAUSES_FROM - 1 + len(IDLE_CAUSES))
    times = [(words, getattr(idle, f"{words.cause}_ns")) for words in IDLE_CAUSES]
    told = ", ".join(f"{percent(time / length)} {words.sentence}" for words, time in times if time)
    bar = tuple((words.colour, time / length) for words, time in times)
    return (
        Cell("", full=f"of the window: {told or 'no idle time'}", bar=bar),
        some_ms(idle.total_ns),
        *(some_ms(time) for _, time in times),
    )


def _launches(analysis: Analysis, shown: Sequence[RankResult], more: int) -> Table:
    columns = (
        Column("rank"),
        Column("launches", sums="count"),
        Column(
            "without kernel",
            brief=None,
            hint="launches whose kernel is not in the trace",
            sums="count",
        ),
        Column(
            "delay us",
            hint="median, from the call to the start of the work",
        ),
        Column("90 % us", brief=None, hint="90 % of the launches have a shorter delay"),
        Column("longest us", brief=None),
        Column("queue", hint="work that is launched and not finished, mean over time"),
        Column("longest queue", brief=None),
        Column("in launches ms", brief=None, hint="time in launch calls of all threads", sums="ms"),
        Column(
            "operators ms",
            brief="operators",
            hint="time of the training loop's thread in operators",
            sums="ms",
        ),
        Column(
            "waiting ms",
            brief="waiting",
            hint="time in which this thread waits for the GPU",
            sums="ms",
        ),
        Column(
            "backward ms",
            brief=None,
            hint="time in which only other threads run operators",
            sums="ms",
        ),
        Column(
            "Python ms",
            brief="Python",
            hint="the rest of this thread's time",
            sums="ms",
        ),
    )
    table = Table(
        "launches",
        "Launches, and the time of the training loop's thread",
        columns,
        tuple(_launch_row(rank) for rank in shown),
        brief="LAUNCHES, and the training loop's thread (ms)",
    )
    return _of_ranks(analysis, table, shown, more)


def _launch_row(rank: RankResult) -> Row:
    launches, loop = rank.launches, rank.host.loop_thread
    depth = launches.depth_mean
    delays = (launches.delay_median_ns, launches.delay_p90_ns, launches.delay_max_ns)
    thread = (Cell(NONE),) * 4
    if loop is not None:
        rest = loop.other_ns - loop.backward_ns
        # No loop trains without operators: the trace has none, so nobody knows what is Python.
        known = loop.operators_ns > 0
        thread = (
            some_ms(loop.operators_ns),
            some_ms(loop.waiting_ns),
            some_ms(loop.backward_ns),
            ms(rest) if known else Cell(NONE),
        )
    without = launches.without_kernel
    cells = (
        rank_cell(rank),
        amount(launches.launches),
        amount(without),
        *(number(one, microseconds(one)) for one in delays),
        number(depth, column(depth or 0)),
        number(launches.depth_max, f"{launches.depth_max or 0:,}"),
        some_ms(launches.calls_ns),
        *thread,
    )
    return Row(cells)
