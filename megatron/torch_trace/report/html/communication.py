# SPDX-License-Identifier: Apache-2.0
"""Communication by dimension, group and collective."""

from __future__ import annotations

from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.analysis.results.summary import CommunicationSummary
from megatron.torch_trace.report.tables import (
    Cell,
    Column,
    Row,
    Section,
    Table,
    at,
    ms,
    number,
    text,
)
from megatron.torch_trace.wording import NONE, count, percent, size, speed


def means(analysis: Analysis) -> str:
    """What the numbers of a table are."""
    ranks = len(analysis.ranks)
    return "of one rank" if ranks == 1 else f"means over {ranks:,} ranks"


def section(analysis: Analysis) -> Section:
    """One line for each dimension, group and collective."""
    rows = analysis.summary.communication
    if not rows:
        return Section("communication", "Communication", "no communication kernel ran")
    columns = (
        Column("dim", number=False),
        Column("collective", number=False),
        Column("group", number=False),
        Column("calls"),
        Column("ms"),
        Column("of window"),
        Column("exposed ms", hint="nothing computes beside it"),
        Column("wait ms", hint="beyond the shortest call over the ranks"),
        Column("bytes", hint="nccl-tests' S, of a rank"),
        Column("busbw GB/s", hint="nccl-tests', decimal; > where waiting is unknown"),
        Column("ranks"),
    )
    window = analysis.summary.window_ns
    table = Table(
        "collectives",
        f"By dimension and collective, {means(analysis)}",
        columns,
        tuple(_row(row, window) for row in rows),
    )
    return Section("communication", "Communication", data={"table": table})


def _row(row: CommunicationSummary, window: float) -> Row:
    exposed = min(row.exposed_ns / window, row.share) if window else 0.0
    bar = (("exposed_communication", exposed), ("hidden", row.share - exposed))
    short = row.group.replace("_GROUP", "").replace("_MODEL_PARALLEL", "_PARALLEL")
    barrier = row.collective == "barrier"
    cells = (
        text(row.dimension),
        text(row.collective.replace("_", " ")),
        text(short.replace("_", " ").lower(), row.group),
        number(row.calls, count(row.calls)),
        ms(row.time_ns),
        Cell(percent(row.share), sort=row.share, bar=bar),
        ms(row.exposed_ns),
        ms(row.wait_ns),
        Cell(NONE if barrier else size(row.bytes), sort=row.bytes),
        Cell(speed(row.busbw_gbps, with_waiting=row.wait_ns is None), sort=row.busbw_gbps),
        number(row.ranks, f"{row.ranks:,}"),
    )
    return Row(cells, at(row.longest_rank, row.longest))
