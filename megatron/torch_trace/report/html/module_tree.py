# SPDX-License-Identifier: Apache-2.0
"""The tree of modules of the first and the last stage; layers are one line, and one bar each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from megatron.torch_trace.analysis.modules import ModuleAccount, ModuleRow
from megatron.torch_trace.analysis.results import Analysis, RankResult
from megatron.torch_trace.report.html import stage_work
from megatron.torch_trace.report.html.parts import At, Cell, Column, Section, at, ms, number, share
from megatron.torch_trace.report.stages import first_and_last, label
from megatron.torch_trace.report.words import NONE, count, milliseconds, percent, ranks

_ANY = "*"
_PER_TERA = 1000
"""FLOPs a ns of one TFLOP/s."""
_MOST = 600
_MOST_OUTSIDE = 12
_ENGINE = "autograd::engine::evaluate_function: "
_COLUMNS = (
    Column("module", number=False),
    Column("class", number=False),
    Column("calls"),
    Column("forward ms"),
    Column("recompute ms"),
    Column("backward ms"),
    Column("total ms", hint="sum of GPU work, modules below included"),
    Column("own ms", hint="in no module below"),
    Column("TFLOP/s", hint="FLOPs of matrix products and attention / total ms"),
    Column("share", hint="of all GPU work in the window"),
    Column("exposed comm ms"),
)
_Path = tuple[str, ...]


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


@dataclass(slots=True)
class _Node:
    """Modules whose paths differ in numbers only."""

    rows: list[ModuleRow] = field(default_factory=list)
    children: list[_Path] = field(default_factory=list)

    def sum(self, name: str) -> int:
        return sum(getattr(row, name) for row in self.rows)


def section(analysis: Analysis) -> Section:
    """A tree for the first and the last stage."""
    shown = first_and_last(analysis, lambda rank: rank.modules)
    if not shown:
        return Section(
            "modules",
            "Modules",
            "the traces have neither spans of modules (--torch-profile-spans modules) nor stacks",
        )
    trees = [_tree(rank, label(rank, shown)) for rank in shown]
    data = {"trees": trees, **stage_work.tables(analysis)}
    return Section("modules", "Modules", data=data)


def _tree(rank: RankResult, name: str) -> Tree:
    nodes: dict[_Path, _Node] = {}
    for row in rank.modules:
        merged = tuple(_ANY if part.isdigit() else part for part in row.module.split("."))
        nodes.setdefault(merged, _Node()).rows.append(row)
    busy = {path: node for path, node in nodes.items() if node.sum("total_ns")}
    roots: list[_Path] = []
    for path in busy:
        above = next((path[:n] for n in range(len(path) - 1, 0, -1) if path[:n] in busy), ())
        (busy[above].children if above else roots).append(path)
    walked = list(_walk(busy, roots, (), 1))
    lines = tuple(_line(rank, busy[path], path, above, level) for path, above, level in walked)
    columns: tuple[Column, ...] = _COLUMNS
    empty = [n for n in range(3, len(_COLUMNS)) if not any(line.cells[n].sort for line in lines)]
    if empty:
        columns = tuple(c for n, c in enumerate(columns) if n not in empty)
        lines = tuple(_without(line, empty) for line in lines)
    rest = ""
    if len(lines) > _MOST:
        rest = f"{len(lines) - _MOST:,} lines more are in analyze --json."
    quiet = len(nodes) - len(busy)
    if quiet:
        rest = f"{rest} Modules without GPU work, {quiet:,} lines, are left out.".strip()
    return Tree(
        f"tree-{rank.rank}",
        name,
        columns,
        lines[:_MOST],
        _outside(rank.module_account),
        rest,
    )


def _walk(
    nodes: dict[_Path, _Node], paths: Sequence[_Path], above: _Path, level: int
) -> Iterator[tuple[_Path, _Path, int]]:
    for path in sorted(paths, key=lambda one: -nodes[one].sum("total_ns")):
        yield path, above, level
        yield from _walk(nodes, nodes[path].children, path, level + 1)


def _line(rank: RankResult, node: _Node, path: _Path, above: _Path, level: int) -> Line:
    kinds = sorted({row.type for row in node.rows})
    own = node.sum("self_ns") + node.sum("backward_self_ns") + node.sum("recompute_self_ns")
    calls = node.sum("calls")
    cells = (
        Cell(_name(path, len(above), node)),
        Cell(kinds[0] if len(kinds) == 1 else f"{len(kinds)} classes", full=", ".join(kinds)),
        number(calls, count(calls)),
        ms(node.sum("time_ns")),
        ms(node.sum("recompute_time_ns")),
        ms(node.sum("backward_time_ns")),
        ms(node.sum("total_ns")),
        ms(own),
        _speed(node),
        share(sum(row.share for row in node.rows)),
        ms(node.sum("exposed_communication_ns")),
    )
    moments = [row.longest for row in node.rows if row.longest]
    moment = max(moments, key=lambda one: one.duration_ns, default=None)
    full = _name(path, 0, node)
    return Line(level, bool(node.children), full, cells, at(rank.rank, moment))


def _speed(node: _Node) -> Cell:
    """TFLOP/s of all passes; unknown if the FLOPs of any are."""
    parts = [
        one for row in node.rows for one in (row.flops, row.backward_flops, row.recompute_flops)
    ]
    known = [one for one in parts if one is not None]
    total = node.sum("total_ns")
    if len(known) < len(parts) or not any(known) or not total:
        return Cell(NONE)
    return stage_work.speed(sum(known) / total / _PER_TERA)


def _without(line: Line, columns: Sequence[int]) -> Line:
    cells = tuple(cell for n, cell in enumerate(line.cells) if n not in columns)
    return Line(line.level, line.has_children, line.path, cells, line.at)


def _name(path: _Path, skip: int, node: _Node) -> str:
    """What a line adds to the one above it, numbers as ranges: `layers.0-3`."""
    parts = []
    for position in range(skip, len(path)):
        numbers = {row.module.split(".")[position] for row in node.rows}
        several = ranks(tuple(sorted(map(int, numbers)))) if path[position] == _ANY else ""
        parts.append(several or path[position])
    return ".".join(parts)


def _outside(account: ModuleAccount | None) -> str:
    if account is None or not account.gpu_ns:
        return ""
    text = f"In no module: {percent(account.unattributed_ns / account.gpu_ns)} of the GPU work"
    named = [
        f"{row.operator.removeprefix(_ENGINE)} {milliseconds(row.time_ns)} ms"
        for row in account.outside[:_MOST_OUTSIDE]
    ]
    more = len(account.outside) - len(named)
    if named:
        text += f": {', '.join(named)}" + (f", and {more:,} operators more" if more > 0 else "")
    text += "."
    if account.microbatch_ns and account.microbatch_unattributed_ns is not None:
        lost = percent(account.microbatch_unattributed_ns / account.microbatch_ns)
        text += f" Within micro-batches {lost} is in no module."
    return text
