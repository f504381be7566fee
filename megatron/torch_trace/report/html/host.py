# SPDX-License-Identifier: Apache-2.0
"""The CPU side: launches, causes of idle time, synchronisations, data loader, Python."""

from __future__ import annotations

from typing import Any

from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult
from megatron.torch_trace.report.html.breakdown import FEW
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
from megatron.torch_trace.wording import NONE, UNKNOWN, count, percent

_MOST = 200
_USE = "the time to make a batch, of the time between two requests, at least"
_CAUSES = (
    ("cpu_ns", "cause_cpu", "not launched yet"),
    ("data_ns", "cause_data", "data loader"),
    ("sync_ns", "cause_sync", "after synchronising"),
    ("gpu_ns", "cause_gpu", "launched, not started"),
    ("unknown_ns", "cause_unknown", "unknown"),
)


def section(analysis: Analysis) -> Section:
    """Of every rank, or of the least and the most idle of many."""
    shown = [
        rank
        for rank in analysis.ranks
        if len(analysis.ranks) <= FEW or rank.rank in analysis.summary.extremes
    ]
    more = len(analysis.ranks) - len(shown)
    rest = ""
    if more:
        rest = f"The least and the most idle; {more:,} ranks more are in analyze --json."
    gpu = not analysis.is_of_the_cpu
    data: dict[str, Any] = {
        "causes": [(colour, words) for _, colour, words in _CAUSES] if gpu else [],
        "idle": _idle(shown, rest) if gpu else None,
        "launches": _launches(shown, rest) if gpu else None,
        "syncs": _syncs(analysis),
        "loading": _loading(analysis),
        "python": _python(analysis),
        "compiled": _compiled(analysis),
    }
    if not any(data.values()):
        return Section("host", "CPU side", "the traces have neither stacks nor a data loader")
    return Section("host", "CPU side", data=data)


def _idle(shown: list[RankResult], rest: str) -> Table:
    columns = (
        Column("rank"),
        Column("why idle", number=False),
        Column("idle ms"),
        *(Column(f"{words} ms") for _, _, words in _CAUSES),
    )
    rows = []
    for rank in shown:
        idle, length = rank.host.idle, rank.window_ns
        if rank.unknown or not length:
            cells = (Cell(UNKNOWN), Cell(UNKNOWN), *(Cell(UNKNOWN) for _ in _CAUSES))
        else:
            parts = tuple((c, getattr(idle, name) / length) for name, c, _ in _CAUSES)
            told = ", ".join(f"{w} {percent(getattr(idle, n) / length)}" for n, _, w in _CAUSES)
            cells = (
                Cell("", full=f"of the window: {told}", bar=parts),
                ms(idle.total_ns),
                *(ms(getattr(idle, name)) for name, _, _ in _CAUSES),
            )
        rows.append(Row((rank_cell(rank), *cells)))
    return Table(
        "idle", "Why the GPU was idle, ms and bar of the window", columns, tuple(rows), rest
    )


def _launches(shown: list[RankResult], rest: str) -> Table:
    columns = (
        Column("rank"),
        Column("launches"),
        Column("without kernel"),
        Column("delay us", hint="median, from the call to the start of the work"),
        Column("90 % us", hint="the delay that 90 % of the launches stay below"),
        Column("longest us"),
        Column("queue", hint="launched and not finished, mean over time"),
        Column("longest queue"),
        Column("in launches ms", hint="all threads"),
        Column("operators ms", hint="of the training loop's thread"),
        Column("waiting ms", hint="for the GPU"),
        Column("backward ms", hint="while operators ran on other threads"),
        Column("Python ms", hint="the rest of the loop's thread, without the backward pass"),
    )
    return Table(
        "launches",
        "Launches, and what the training loop's thread did",
        columns,
        tuple(_launch_row(rank) for rank in shown),
        rest,
    )


def _launch_row(rank: RankResult) -> Row:
    launches, loop = rank.launches, rank.host.loop_thread
    depth = launches.depth_mean
    delays = (launches.delay_median_ns, launches.delay_p90_ns, launches.delay_max_ns)
    thread = (Cell(NONE),) * 4
    if loop is not None:
        rest = loop.other_ns - loop.backward_ns
        thread = (ms(loop.operators_ns), ms(loop.waiting_ns), ms(loop.backward_ns), ms(rest))
    cells = (
        rank_cell(rank),
        number(launches.launches, count(launches.launches)),
        number(launches.without_kernel, count(launches.without_kernel)),
        *(number(one, f"{(one or 0) / 1e3:,.1f}") for one in delays),
        number(depth, f"{depth or 0:,.1f}"),
        number(launches.depth_max, f"{launches.depth_max or 0:,}"),
        ms(launches.calls_ns),
        *thread,
    )
    return Row(cells)


def _syncs(analysis: Analysis) -> Table | None:
    found = sorted(
        ((row, rank) for rank in analysis.ranks for row in rank.host.syncs),
        key=lambda entry: -entry[0].time_ns,
    )
    if not found:
        return None
    columns = (
        Column("call", number=False),
        Column("called by", number=False),
        Column("rank"),
        Column("times"),
        Column("ms"),
        Column("longest ms"),
    )
    rows = tuple(
        Row(
            (
                text(row.call),
                text(row.caller),
                rank_cell(rank),
                number(row.calls, count(row.calls)),
                ms(row.time_ns),
                ms(row.max_ns),
            ),
            at(rank.rank, row.longest),
        )
        for row, rank in found[:_MOST]
    )
    return Table("syncs", "Where the CPU waited for the GPU", columns, rows, _more(found))


def _loading(analysis: Analysis) -> Table | None:
    found = [(rank, row) for rank in analysis.ranks for row in rank.host.data_loading]
    if not found:
        return None
    with_use = any(rank.host.loader_supply for rank, _ in found)
    columns = (
        Column("rank"),
        Column("step"),
        Column("batches"),
        Column("ms", hint="the training loop in the loader's __next__"),
        Column("GPU idle ms", hint="of that"),
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
            number(row.calls, count(row.calls)),
            ms(row.time_ns),
            ms(row.idle_ns),
            *((Cell(UNKNOWN) if supply is None else share(supply.use),) if with_use else ()),
        )
        rows.append(Row(cells[:kept]))
    return Table("loading", "Data loader", columns[:kept], tuple(rows), _more(found))


def _python(analysis: Analysis) -> Table | None:
    rank = next((rank for rank in analysis.ranks if rank.host.python), None)
    if rank is None:
        return None
    columns = (Column("function", number=False), Column("calls"), Column("own ms"))
    rows = tuple(
        Row(
            (
                text(row.function.rsplit("/", 1)[-1], row.function),
                number(row.calls, count(row.calls)),
                ms(row.self_ns),
            )
        )
        for row in rank.host.python[:_MOST]
    )
    caption = f"Python's own time on the training loop's thread, {rank.name}"
    return Table("python", caption, columns, rows, _more(rank.host.python))


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
        Row((text(name.replace("_", " ")), rank_cell(rank), number(times, count(times))))
        for rank, name, times in found[:_MOST]
    )
    caption = "What torch.compile did again in the window, and fused kernels that refused"
    return Table("compiled", caption, columns, rows, _more(found))


def _more(rows: object) -> str:
    count_ = len(rows) if isinstance(rows, (list, tuple)) else 0
    return f"{count_ - _MOST:,} more are in analyze --json." if count_ > _MOST else ""
