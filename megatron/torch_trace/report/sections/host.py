# SPDX-License-Identifier: Apache-2.0
"""The CPU side: the loop's thread, data loader, synchronisations, Python, torch.compile."""

from __future__ import annotations

from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.report.section import Section, Subject
from megatron.torch_trace.report.sections import loop_thread
from megatron.torch_trace.report.tables import (
    Cell,
    Column,
    Medium,
    Row,
    Table,
    amount,
    at,
    in_json,
    ms,
    number,
    rank_cell,
    share,
    text,
)
from megatron.torch_trace.wording import NONE, UNKNOWN

_MOST = 200
_USE = "least time to make a batch, share of the time between two requests"


def section(subject: Subject) -> Section:
    """What keeps the CPU from launching work."""
    analysis, title = subject.analysis, "CPU side"
    tables = [
        *loop_thread.tables(analysis),
        _loading(analysis),
        _syncs(analysis),
        _python(analysis),
        _compiled(analysis),
    ]
    if not any(tables):
        missing = "The traces have no data loader, no synchronisations and no stacks."
        return Section("host", title, missing)
    icicles = loop_thread.figures(analysis) if subject.draws else []
    return Section("host", title, tables=tables, data={"icicles": icicles} if icicles else {})


def _syncs(analysis: Analysis) -> Table | None:
    found = sorted(
        ((row, rank) for rank in analysis.ranks for row in rank.host.syncs),
        key=lambda entry: -entry[0].time_ns,
    )
    if not found:
        return None
    columns = (
        Column("call", number=False, cut=True),
        Column("called by", number=False, cut=True),
        Column("rank"),
        Column("times", sums="count"),
        Column("ms", sums="ms"),
        Column("longest ms", brief="longest"),
    )
    rows = tuple(
        Row(
            (
                text(row.call),
                text(row.caller),
                rank_cell(rank),
                amount(row.calls),
                ms(row.time_ns),
                ms(row.max_ns),
            ),
            at(rank.rank, row.longest),
        )
        for row, rank in found[:_MOST]
    )
    return Table(
        "syncs",
        "Where the CPU waited for the GPU",
        columns,
        rows,
        in_json(len(found) - _MOST),
        brief="LONGEST WAITS of the CPU for the GPU (ms)",
        most=3,
        told="",
    )


def _loading(analysis: Analysis) -> Table | None:
    found = [(rank, row) for rank in analysis.ranks for row in rank.host.data_loading]
    if not found:
        return None
    with_use = any(rank.host.loader_supply for rank, _ in found)
    columns = (
        Column("rank"),
        Column("step"),
        Column("batches"),
        Column("ms", hint="time of the training loop in the data loader"),
        Column("GPU idle ms", hint="idle time of the GPU meanwhile"),
        *((Column("use", hint=_USE),) if with_use else ()),
    )
    kept = 4 if analysis.is_of_the_cpu else len(columns)
    found.sort(key=lambda entry: -entry[1].time_ns)
    rows = []
    for rank, row in found[:_MOST]:
        supply = rank.host.loader_supply
        cells = (
            rank_cell(rank),
            Cell(NONE) if row.step is None else number(row.step, str(row.step)),
            amount(row.calls),
            ms(row.time_ns),
            ms(row.idle_ns),
            *((Cell(UNKNOWN) if supply is None else share(supply.use),) if with_use else ()),
        )
        rows.append(Row(cells[:kept]))
    return Table(
        "loading",
        "Data loader",
        columns[:kept],
        tuple(rows),
        in_json(len(found) - _MOST),
        media=Medium.WRITTEN,
    )


def _python(analysis: Analysis) -> Table | None:
    rank = next((rank for rank in analysis.ranks if rank.host.python), None)
    if rank is None:
        return None
    columns = (
        Column("function", number=False, cut=True),
        Column("calls", sums="count"),
        Column("own ms", brief="own", sums="ms"),
    )
    rows = tuple(
        Row(
            (
                text(row.function.rsplit("/", 1)[-1], row.function),
                amount(row.calls),
                ms(row.self_ns),
            )
        )
        for row in rank.host.python[:_MOST]
    )
    caption = f"Python's own time on the training loop's thread, {rank.name}"
    return Table(
        "python",
        caption,
        columns,
        rows,
        in_json(len(rank.host.python) - _MOST),
        brief=f"PYTHON's own time on the training loop's thread, {rank.name} (ms)",
        most=4,
        told="",
    )


def _compiled(analysis: Analysis) -> Table | None:
    found = [
        (rank, name, times)
        for rank in analysis.ranks
        for name, times in rank.compile.items()
        if times
    ]
    if not found:
        return None
    columns = (Column("what", number=False), Column("rank"), Column("times"))
    rows = tuple(
        Row((text(name.replace("_", " ")), rank_cell(rank), amount(times)))
        for rank, name, times in found[:_MOST]
    )
    caption = (
        "Recompilations by torch.compile in the window, and fused kernels that could not be used"
    )
    return Table(
        "compiled", caption, columns, rows, in_json(len(found) - _MOST), media=Medium.WRITTEN
    )
