# SPDX-License-Identifier: Apache-2.0
"""Where the time of the CPU went, of recordings without a GPU: ranks, operators, modules."""

from __future__ import annotations

from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult
from megatron.torch_trace.analysis.results.cpu_means import mean_operators
from megatron.torch_trace.analysis.results.cpu_time import CpuSplit
from megatron.torch_trace.report.coordinates import used_dimensions, where
from megatron.torch_trace.report.module_nodes import ModuleNode, module_nodes, walk
from megatron.torch_trace.report.section import Section, Subject
from megatron.torch_trace.report.stages import first_and_last, label
from megatron.torch_trace.report.tables import (
    Cell,
    Column,
    Row,
    Table,
    amount,
    at,
    in_json,
    ms,
    rank_cell,
    share,
    some_ms,
    text,
)

_MOST_RANKS, _MOST_OPERATORS, _MOST_MODULES = 512, 200, 600
_PARTS = (("operators_ns", "compute"), ("data_ns", "cause_data"), ("other_ns", "idle"))
_LEGEND = (
    ("compute", "operators"),
    ("cause_data", "data loader"),
    ("idle", "other: Python, waiting"),
)


def section(subject: Subject) -> Section:
    """Three tables; `top` operators and four times as many modules on a terminal."""
    analysis = subject.analysis
    top = subject.top
    if not analysis.is_of_the_cpu:
        return Section(
            "cpu",
            "Time of the CPU",
            "The traces are of GPUs. This section is for traces without a GPU.",
        )
    tables = [_ranks(analysis), _operators(analysis, top)]
    tables += [_modules(rank, name, 4 * top) for rank, name in _with_modules(analysis)]
    return Section("cpu", "Time of the CPU", tables=tables, legend=_LEGEND)


def _ranks(analysis: Analysis) -> Table:
    used = used_dimensions(analysis)
    rows = []
    for rank in analysis.ranks[:_MOST_RANKS]:
        if rank.cpu is not None:
            rows.append(_split(rank, where(rank, used) or "window", rank.cpu.window))
            if len(rank.cpu.steps) > 1:
                rows += [_split(rank, f"step {one.step}", one) for one in rank.cpu.steps]
    columns = (
        Column("rank"),
        Column("at", number=False),
        Column("breakdown", number=False, brief=None),
        Column("length ms", brief="length"),
        Column(
            "operators ms",
            brief="operators",
            hint="time in which any thread is in an operator of torch",
        ),
        Column(
            "data loader ms",
            brief="data loader",
            hint="time in which the training loop waits for it",
        ),
        Column("other ms", brief="other", hint="Python, waiting, other programs"),
    )
    more = len(analysis.ranks) - _MOST_RANKS
    rest = in_json(more, "rank")
    return Table(
        "cpu-ranks",
        "Where the time of the CPU went",
        columns,
        tuple(rows),
        rest,
        brief="WHERE THE TIME OF THE CPU WENT (ms)",
    )


def _split(rank: RankResult, coordinates: str, one: CpuSplit) -> Row:
    parts = tuple((colour, getattr(one, name) / one.length_ns) for name, colour in _PARTS)
    return Row(
        (
            rank_cell(rank),
            text(coordinates),
            Cell("", full="operators, data loader, other", bar=parts),
            ms(one.length_ns),
            *(ms(getattr(one, name)) for name, _ in _PARTS),
        )
    )


def _operators(analysis: Analysis, top: int) -> Table:
    found = mean_operators(analysis.ranks)
    rows = tuple(
        Row(
            (
                text(row.operator),
                amount(row.calls),
                ms(row.self_ns),
                share(row.share),
                ms(row.time_ns),
            ),
            at(row.longest_rank, row.longest),
        )
        for row in found[:_MOST_OPERATORS]
    )
    columns = (
        Column("operator", number=False, cut=True),
        Column("calls", sums="count"),
        Column("own ms", brief="own", hint="in it and in no operator that it calls", sums="ms"),
        Column("share", hint="of the own time of all operators"),
        Column("with calls ms", brief="with calls", hint="what it calls included", sums="ms"),
    )
    many = len(analysis.ranks) > 1
    means = f", mean of {len(analysis.ranks)} ranks" if many else ""
    more = len(found) - len(rows)
    return Table(
        "cpu-operators",
        f"Operators by their own time on the CPU{means}",
        columns,
        rows,
        in_json(more, "operator"),
        brief=f"OPERATORS by their own time on the CPU (ms{means})",
        most=2 * top,
    )


def _with_modules(analysis: Analysis) -> list[tuple[RankResult, str]]:
    shown = first_and_last(analysis, lambda rank: rank.cpu and rank.cpu.modules)
    return [(rank, label(rank, shown)) for rank in shown]


def _modules(rank: RankResult, name: str, most: int) -> Table:
    every = list(walk(module_nodes(rank.cpu.modules if rank.cpu else ())))
    rows = tuple(_module(rank.rank, level + 1, node) for level, node in every[:_MOST_MODULES])
    columns = (
        Column("module", number=False, cut=True),
        Column("class", number=False, spare=True),
        Column("calls", sums="count"),
        Column("forward ms", brief="forward", sums="ms"),
        Column("recompute ms", brief="recompute", sums="ms"),
        Column("backward ms", brief="backward", sums="ms"),
        Column("total ms", brief="total", sums="ms"),
        Column("own ms", brief="own", hint="in no module below", sums="ms"),
        Column("share", hint="of the time in modules"),
    )
    empty = [n for n in (4, 5) if not any(row.cells[n].sort for row in rows)]
    more = len(every) - len(rows)
    return Table(
        f"cpu-modules-{rank.rank}",
        f"Time of the CPU in modules, {name}",
        tuple(column for n, column in enumerate(columns) if n not in empty),
        tuple(_without(row, empty) for row in rows),
        in_json(more, "module"),
        brief=f"MODULES (ms of the CPU): {name}",
        most=most,
        rank=rank.rank,
    )


def _module(rank: int, level: int, node: ModuleNode) -> Row:
    longest = max(
        (row.longest for row in node.rows if row.longest),
        key=lambda one: one.duration_ns,
        default=None,
    )
    cells = (
        text(node.name, ".".join(node.path)),
        text(node.type),
        amount(node.sum("calls")),
        some_ms(node.sum("time_ns")),
        some_ms(node.sum("recompute_time_ns")),
        some_ms(node.sum("backward_time_ns")),
        some_ms(node.total_ns),
        some_ms(node.sum("self_ns")),
        share(sum(row.share for row in node.rows)),
    )
    return Row(cells, at(rank, longest), level=level)


def _without(row: Row, columns: list[int]) -> Row:
    cells = tuple(cell for n, cell in enumerate(row.cells) if n not in columns)
    return Row(cells, row.at, row.attributes, row.level)
