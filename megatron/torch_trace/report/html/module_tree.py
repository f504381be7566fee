# SPDX-License-Identifier: Apache-2.0
"""The tree of modules of the first and the last stage; layers are one line together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from megatron.torch_trace.analysis.modules.coverage import ModuleAccount
from megatron.torch_trace.analysis.modules.ranges import STACKS
from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult
from megatron.torch_trace.report.html import stage_work
from megatron.torch_trace.report.module_nodes import ModuleNode, module_nodes, walk
from megatron.torch_trace.report.stages import first_and_last, label
from megatron.torch_trace.report.tables import (
    At,
    Cell,
    Column,
    Section,
    at,
    ms,
    number,
    share,
    text,
)
from megatron.torch_trace.wording import count, flop_rate, milliseconds, percent

_MOST = 600
_MOST_OUTSIDE = 12
_ENGINE = "autograd::engine::evaluate_function: "
_ALWAYS = 3
_COLUMNS = (
    Column("module", number=False),
    Column("class", number=False),
    Column("calls"),
    Column("forward ms"),
    Column("recompute ms"),
    Column("backward ms"),
    Column("total ms", hint="sum of GPU work, modules below included"),
    Column("own ms", hint="in no module below"),
    Column("TFLOP/s", hint="FLOPs of matrix products and attention / total without communication"),
    Column("share", hint="of all GPU work in the window"),
    Column("exposed comm ms"),
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a tree; `level` begins at 1."""

    level: int
    has_children: bool
    path: str
    cells: tuple[Cell, ...]
    at: At | None


@dataclass(frozen=True, slots=True)
class Tree:
    """The modules of one rank; `name` is its id."""

    name: str
    label: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    outside: str
    rest: str


def section(analysis: Analysis) -> Section:
    """What the stages compute, and a tree for the first and the last of them."""
    shown = first_and_last(analysis, lambda rank: rank.modules)
    if analysis.is_of_the_cpu:
        return Section("modules", "Modules", "no GPU work was recorded; see the time of the CPU")
    if not shown:
        missing = (
            "the traces have neither spans of modules (--torch-profile-spans modules) nor stacks"
        )
        return Section("modules", "Modules", missing)
    trees = [_tree(rank, label(rank, shown)) for rank in shown]
    data = {"trees": trees, **stage_work.tables(analysis)}
    return Section("modules", "Modules", data=data)


def _tree(rank: RankResult, name: str) -> Tree:
    every = list(walk(module_nodes(rank.modules)))
    busy = [(level, node) for level, node in every if node.total_ns]
    whole = rank.module_account.gpu_ns if rank.module_account else 0
    lines = tuple(_line(rank.rank, level + 1, node, whole) for level, node in busy[:_MOST])
    empty = [
        n for n in range(_ALWAYS, len(_COLUMNS)) if not any(line.cells[n].sort for line in lines)
    ]
    columns = tuple(column for n, column in enumerate(_COLUMNS) if n not in empty)
    parts = []
    if len(busy) > _MOST:
        parts.append(f"{len(busy) - _MOST:,} lines more are in analyze --json.")
    if len(every) > len(busy):
        parts.append(f"{len(every) - len(busy):,} lines without GPU work are left out.")
    stacks = bool(rank.module_account and rank.module_account.source == STACKS)
    return Tree(
        f"tree-{rank.rank}",
        f"{name}, from Python stacks" if stacks else name,
        columns,
        tuple(_without(line, empty) for line in lines),
        _outside(rank.module_account, has_shapes=bool(rank.shapes)),
        " ".join(parts),
    )


def _line(rank: int, level: int, node: ModuleNode, whole: int) -> Line:
    calls = node.sum("calls")
    cells = (
        Cell(node.name),
        text(node.type, ", ".join(sorted({row.type for row in node.rows}))),
        number(calls, count(calls)),
        ms(node.sum("time_ns")),
        ms(node.sum("recompute_time_ns")),
        ms(node.sum("backward_time_ns")),
        ms(node.total_ns),
        ms(node.own_ns),
        Cell(flop_rate(node.tflops), sort=node.tflops),
        share(node.total_ns / whole if whole else None),
        ms(node.sum("exposed_communication_ns")),
    )
    moments = [row.longest for row in node.rows if row.longest]
    moment = max(moments, key=lambda one: one.duration_ns, default=None)
    has_children = any(child.total_ns for child in node.children)
    return Line(level, has_children, ".".join(node.path), cells, at(rank, moment))


def _without(line: Line, columns: Sequence[int]) -> Line:
    cells = tuple(cell for n, cell in enumerate(line.cells) if n not in columns)
    return replace(line, cells=cells)


def _outside(account: ModuleAccount | None, *, has_shapes: bool) -> str:
    if account is None or not account.gpu_ns:
        return ""
    told = f"In no module: {percent(account.unattributed_ns / account.gpu_ns)} of the GPU work"
    named = [
        f"{row.operator.removeprefix(_ENGINE)} {milliseconds(row.time_ns)} ms"
        for row in account.outside[:_MOST_OUTSIDE]
    ]
    more = len(account.outside) - len(named)
    if named:
        told += f": {', '.join(named)}" + (f", and {more:,} operators more" if more > 0 else "")
    told += "."
    if account.microbatch_ns and account.microbatch_unattributed_ns is not None:
        lost = percent(account.microbatch_unattributed_ns / account.microbatch_ns)
        told += f" Within micro-batches {lost} is in no module."
    if not has_shapes:
        told += " TFLOP/s are unknown without shapes (--torch-profile-record-shapes)."
    return told
