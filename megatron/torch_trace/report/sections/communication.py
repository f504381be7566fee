# SPDX-License-Identifier: Apache-2.0
"""Communication by dimension, group and collective."""

from __future__ import annotations

from typing import Any

from megatron.torch_trace.analysis.results.summary import CommunicationSummary
from megatron.torch_trace.report.means import of_ranks, over_ranks
from megatron.torch_trace.report.section import Section, Subject
from megatron.torch_trace.report.tables import (
    Cell,
    Column,
    Row,
    Table,
    amount,
    at,
    ms,
    number,
    text,
)
from megatron.torch_trace.wording import NONE, UNKNOWN, percent, size, speed

_NOTE = "Rows of one dimension may overlap rows of another dimension in time."
_LEGEND = (("exposed_communication", "exposed"), ("hidden", "overlapped"))


def section(subject: Subject) -> Section:
    """One line for each dimension, group and collective."""
    analysis = subject.analysis
    rows = analysis.summary.communication
    if not rows:
        return Section("communication", "Communication", "No communication kernel ran.")
    columns = (
        Column("dimension", number=False, brief="dim"),
        Column("collective", number=False),
        Column("group", number=False, cut=True, spare=True),
        Column("calls", sums="count"),
        Column("ms", sums="ms"),
        Column("of window", brief="share"),
        Column("exposed ms", brief="exposed", hint="the GPU computes nothing meanwhile", sums="ms"),
        Column(
            "wait ms",
            brief="wait",
            hint="time beyond the shortest duration of the same call over the ranks",
            sums="ms",
        ),
        Column("bytes", hint="of one rank, as nccl-tests counts them", sums="bytes"),
        Column(
            "busbw GB/s",
            brief="busbw",
            hint="as nccl-tests defines it; > where the time includes an unknown wait",
        ),
        Column("ranks", brief=None),
    )
    window = analysis.summary.window_ns
    unknown = any(row.wait_ns is None and row.busbw_gbps for row in rows)
    with_waiting = "; > includes waiting" if unknown else ""
    table = Table(
        "collectives",
        f"By dimension and collective, {over_ranks(analysis)}",
        columns,
        tuple(_row(row, window, known=analysis.summary.shares is not None) for row in rows),
        brief=f"COMMUNICATION ({of_ranks(analysis)}; busbw GB/s{with_waiting})",
        limit=40,
        note=_NOTE,
    )
    return Section(
        "communication", "Communication", tables=[table], legend=_LEGEND, data=_drawn(subject)
    )


def _drawn(subject: Subject) -> dict[str, Any]:
    if not subject.draws:
        return {}
    from megatron.torch_trace.report.figures.message_sizes import message_figure

    figure = message_figure(subject.analysis)
    return {"messages": figure} if figure else {}


def _row(row: CommunicationSummary, window: float, *, known: bool) -> Row:
    exposed = min(row.exposed_ns / window, row.share) if window else 0.0
    bar = (("exposed_communication", exposed), ("hidden", row.share - exposed))
    short = row.group.replace("_GROUP", "").replace("_MODEL_PARALLEL", "_PARALLEL")
    barrier = row.collective == "barrier"
    cells = (
        text(row.dimension),
        text(row.collective.replace("_", " "), brief=row.collective),
        text(short.replace("_", " ").lower(), row.group, short),
        amount(row.calls),
        ms(row.time_ns),
        Cell(percent(row.share), sort=row.share, bar=bar),
        ms(row.exposed_ns) if known else Cell(UNKNOWN),
        ms(row.wait_ns),
        Cell(NONE if barrier else size(row.bytes), sort=row.bytes),
        Cell(speed(row.busbw_gbps, with_waiting=row.wait_ns is None), sort=row.busbw_gbps),
        number(row.ranks, f"{row.ranks:,}"),
    )
    return Row(cells, at(row.longest_rank, row.longest))
