# SPDX-License-Identifier: Apache-2.0
"""The tree of modules, of the first and the last pipeline stage; layers are one line together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from megatron.torch_trace.analysis.modules import ModuleAccount, ModuleRow
from megatron.torch_trace.analysis.results import Analysis, RankResult
from megatron.torch_trace.report.stages import first_and_last, label
from megatron.torch_trace.report.table import paragraph, table
from megatron.torch_trace.report.words import NONE, count, milliseconds, percent, ranks

_DEPTH = 4
_MOST_LAYERS = 12
_MOST_OUTSIDE = 4
_WIDE = 96
_ANY = "*"
_ENGINE = "autograd::engine::evaluate_function: "


@dataclass(slots=True)
class _Node:
    """Modules whose paths differ in numbers only."""

    rows: list[ModuleRow] = field(default_factory=list)
    children: list[tuple[str, ...]] = field(default_factory=list)

    def sum(self, name: str) -> int:
        return sum(getattr(row, name) for row in self.rows)


def tree(analysis: Analysis, width: int, top: int) -> list[str]:
    """Modules by GPU work; nothing without spans of modules."""
    shown = first_and_last(analysis, lambda rank: rank.modules)
    parts = [_tree(rank, label(rank, shown), width, 2 * top) for rank in shown]
    return [line for n, part in enumerate(parts) for line in ([""] if n else []) + part]


def _tree(rank: RankResult, name: str, width: int, most: int) -> list[str]:
    nodes = _nodes(rank.modules)
    heaviest = sorted(nodes, key=lambda path: (-nodes[path].sum("total_ns"), len(path)))[:most]
    kept = {path: nodes[path] for path in heaviest if nodes[path].sum("total_ns")}
    roots: list[tuple[str, ...]] = []
    for path in kept:
        above = _nearest(path, kept)
        (kept[above].children if above else roots).append(path)
    columns = ["<~module", "<class", "calls", "forward", "recompute", "backward", "share",
               "exposed comm"]  # fmt: skip
    lines = [
        _cells(path, depth, above, kept[path]) for path, depth, above in _walk(kept, roots, (), 0)
    ]
    account = rank.module_account
    if account is not None and account.gpu_ns:
        share = percent(account.unattributed_ns / account.gpu_ns)
        lines.append(["(in no module)", *[""] * 5, share, ""])
    without = [] if width >= _WIDE else [columns.index("<class")]
    for optional in ("recompute", "exposed comm"):
        at = columns.index(optional)
        if all(line[at] in (NONE, "") for line in lines):
            without.append(at)
    keep = [n for n in range(len(columns)) if n not in without]
    found = [f"MODULES (ms and share of the GPU work they launched): {name}"]
    found += table([columns[n] for n in keep], [[line[n] for n in keep] for line in lines], width)
    if account is not None:
        found += _outside(account, width)
    return found + _layers(nodes, kept, width)


def _nodes(rows: tuple[ModuleRow, ...]) -> dict[tuple[str, ...], _Node]:
    nodes: dict[tuple[str, ...], _Node] = {}
    for row in rows:
        parts = row.module.split(".")
        merged = tuple(_ANY if part.isdigit() else part for part in parts)
        nodes.setdefault(merged, _Node()).rows.append(row)
    deep = [path for path in nodes if _depth(path, nodes) > _DEPTH]
    return {path: node for path, node in nodes.items() if path not in deep}


def _depth(path: tuple[str, ...], nodes: dict[tuple[str, ...], _Node]) -> int:
    """A list of layers, which is called by nobody, is no level of its own."""
    return sum(path[:length] in nodes for length in range(1, len(path) + 1))


def _nearest(path: tuple[str, ...], kept: dict[tuple[str, ...], _Node]) -> tuple[str, ...]:
    for length in range(len(path) - 1, 0, -1):
        if path[:length] in kept:
            return path[:length]
    return ()


def _walk(
    kept: dict[tuple[str, ...], _Node],
    paths: list[tuple[str, ...]],
    above: tuple[str, ...],
    depth: int,
) -> Iterator[tuple[tuple[str, ...], int, tuple[str, ...]]]:
    for path in sorted(paths, key=lambda one: -kept[one].sum("total_ns")):
        yield path, depth, above
        yield from _walk(kept, kept[path].children, path, depth + 1)


def _cells(path: tuple[str, ...], depth: int, above: tuple[str, ...], node: _Node) -> list[str]:
    kinds = sorted({row.type for row in node.rows})
    times = ("time_ns", "recompute_time_ns", "backward_time_ns")
    exposed = node.sum("exposed_communication_ns")
    return [
        "  " * depth + _name(path, len(above), node),
        kinds[0] if len(kinds) == 1 else f"{len(kinds)} classes",
        count(node.sum("calls")),
        *(milliseconds(node.sum(name)) if node.sum(name) else NONE for name in times),
        percent(sum(row.share for row in node.rows)),
        milliseconds(exposed) if exposed else NONE,
    ]


def _name(path: tuple[str, ...], skip: int, node: _Node) -> str:
    """What a line adds to the one above it, numbers as ranges: `layers.0-3`."""
    parts = []
    for at in range(skip, len(path)):
        numbers = {row.module.split(".")[at] for row in node.rows}
        parts.append(ranks(tuple(sorted(map(int, numbers)))) if path[at] == _ANY else path[at])
    return ".".join(parts)


def _outside(account: ModuleAccount, width: int) -> list[str]:
    named = [
        f"{row.operator.removeprefix(_ENGINE)} {milliseconds(row.time_ns)}"
        for row in account.outside[:_MOST_OUTSIDE]
    ]
    text = f"In no module, ms: {', '.join(named)}." if named else ""
    if account.microbatch_ns and account.microbatch_unattributed_ns is not None:
        share = percent(account.microbatch_unattributed_ns / account.microbatch_ns)
        text += f" Within micro-batches {share} is in no module."
    return paragraph(text.strip(), width, "  ", "  ")


def _layers(
    nodes: dict[tuple[str, ...], _Node], kept: dict[tuple[str, ...], _Node], width: int
) -> list[str]:
    """Layer by layer, of the heaviest list of modules; the extremes where they are many."""
    path = next((path for path in kept if path[-1] == _ANY and len(nodes[path].rows) > 1), None)
    if path is None:
        return []
    times = {int(row.module.rsplit(".", 1)[1]): row.total_ns for row in nodes[path].rows}
    if len(times) <= _MOST_LAYERS:
        listed = ", ".join(milliseconds(times[number]) for number in sorted(times))
        text = f"Layers {ranks(tuple(sorted(times)))}, ms: {listed}."
    else:
        by_time = sorted(times, key=lambda number: -times[number])
        most, least = (f"{milliseconds(times[n])} (layer {n})" for n in (by_time[0], by_time[-1]))
        text = f"{len(times)} layers, ms: from {least} to {most}."
    return paragraph(text, width, "  ", "  ")
