# SPDX-License-Identifier: Apache-2.0
"""The tree of modules, of the first and the last pipeline stage; layers are one line together."""

from __future__ import annotations

from megatron.torch_trace.analysis.modules.coverage import ModuleAccount
from megatron.torch_trace.analysis.modules.ranges import STACKS
from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult
from megatron.torch_trace.analysis.results.stage_work import StageWork
from megatron.torch_trace.report.module_nodes import ModuleNode, module_nodes, walk
from megatron.torch_trace.report.stages import first_and_last, label
from megatron.torch_trace.report.table import paragraph, table
from megatron.torch_trace.wording import (
    NONE,
    count,
    flop_rate,
    milliseconds,
    percent,
    ranks,
)

_DEPTH = 5
_MOST_LAYERS = 12
_MOST_OUTSIDE = 4
_MOST_STAGES = 16
_WIDE = 96
_LEAST_OWN = 0.01
"""Share of GPU work from which a module's own part, besides its modules, is a line."""
_ENGINE = "autograd::engine::evaluate_function: "
_COLUMNS = ("<~module", "<class", "calls", "forward", "recompute", "backward", "share", "TFLOP/s",
            "exposed comm")  # fmt: skip
_OPTIONAL = ("recompute", "TFLOP/s", "exposed comm")


def tree(analysis: Analysis, width: int, top: int) -> list[str]:
    """Modules by GPU work and what the stages compute; nothing if no trace tells of modules."""
    shown = first_and_last(analysis, lambda rank: any(row.total_ns for row in rank.modules))
    parts = [_tree(rank, label(rank, shown), width, 2 * top) for rank in shown]
    if len(analysis.stages) > 1:
        parts.append(_stages(analysis.stages, width))
    return [line for n, part in enumerate(parts) for line in ([""] if n else []) + part]


def _tree(rank: RankResult, name: str, width: int, most: int) -> list[str]:
    every = [(level, node) for level, node in walk(module_nodes(rank.modules)) if node.total_ns]
    heaviest = sorted(
        (level for level in every if level[0] < _DEPTH), key=lambda one: (-one[1].total_ns, one[0])
    )[:most]
    kept = {node.path for _, node in heaviest}
    account = rank.module_account
    whole = account.gpu_ns if account else 0
    lines = []
    for level, node in every:
        if node.path in kept:
            lines.append(_cells(level, node, whole))
            if any(child.path in kept for child in node.children):
                lines += _itself(level + 1, node, whole)
    if account is not None and whole:
        share = percent(account.unattributed_ns / whole)
        lines.append(["(in no module)", *[""] * 5, share, "", ""])
    stacks = ", from Python stacks" if account and account.source == STACKS else ""
    found = [f"MODULES (ms and share of the GPU work they launched): {name}{stacks}"]
    keep = _columns(lines, width, classes=not stacks)
    found += table([_COLUMNS[n] for n in keep], [[line[n] for n in keep] for line in lines], width)
    if account is not None:
        found += _outside(account, width, has_shapes=bool(rank.shapes))
    return found + _layers([node for _, node in every], width)


def _columns(lines: list[list[str]], width: int, *, classes: bool) -> list[int]:
    """Which columns tell something and fit; paths of stacks are made of classes already."""
    keep = [
        n
        for n, name in enumerate(_COLUMNS)
        if name not in _OPTIONAL or any(line[n] not in (NONE, "") for line in lines)
    ]
    headings = [name.lstrip("<~") for name in _COLUMNS]
    needed = sum(2 + max(len(row[n]) for row in (headings, *lines)) for n in keep)
    if not classes or width < _WIDE or needed > width:
        keep.remove(_COLUMNS.index("<class"))
    return keep


def _cells(level: int, node: ModuleNode, whole: int) -> list[str]:
    exposed = node.sum("exposed_communication_ns")
    return [
        "  " * level + node.name,
        node.type,
        count(node.sum("calls")),
        *_times(node, "time_ns", "recompute_time_ns", "backward_time_ns"),
        percent(node.total_ns / whole if whole else 0.0),
        flop_rate(node.tflops),
        milliseconds(exposed) if exposed else NONE,
    ]


def _itself(level: int, node: ModuleNode, whole: int) -> list[list[str]]:
    """What a module launches outside of its parts, the loss for one; nothing if that is little."""
    share = node.own_ns / whole if whole else 0.0
    if share < _LEAST_OWN:
        return []
    times = _times(node, "self_ns", "recompute_self_ns", "backward_self_ns")
    return [["  " * level + "(itself)", "", "", *times, percent(share), "", ""]]


def _times(node: ModuleNode, *names: str) -> list[str]:
    return [milliseconds(node.sum(name)) if node.sum(name) else NONE for name in names]


def _outside(account: ModuleAccount, width: int, *, has_shapes: bool) -> list[str]:
    named = [
        f"{row.operator.removeprefix(_ENGINE)} {milliseconds(row.time_ns)}"
        for row in account.outside[:_MOST_OUTSIDE]
    ]
    text = f"In no module, ms: {', '.join(named)}." if named else ""
    if account.microbatch_ns and account.microbatch_unattributed_ns is not None:
        share = percent(account.microbatch_unattributed_ns / account.microbatch_ns)
        text += f" Within micro-batches {share} is in no module."
    lines = paragraph(text.strip(), width, "  ", "  ")
    if not has_shapes:
        lines.append("  TFLOP/s are unknown without shapes: --torch-profile-record-shapes.")
    return lines


def _layers(nodes: list[ModuleNode], width: int) -> list[str]:
    """Layer by layer, of the heaviest list of modules; the extremes where they are many."""
    lists = [node for node in nodes if node.is_list]
    if not lists:
        return []
    heaviest = max(lists, key=lambda node: node.total_ns)
    # How long a collective in a layer's hooks takes is mostly how late other ranks are.
    times = {
        int(row.module.rsplit(".", 1)[1]): row.total_ns - row.communication_ns
        for row in heaviest.rows
    }
    unit = "ms" + " without communication" * any(row.communication_ns for row in heaviest.rows)
    if len(times) <= _MOST_LAYERS:
        listed = ", ".join(milliseconds(times[number]) for number in sorted(times))
        text = f"Layers {ranks(tuple(sorted(times)))}, {unit}: {listed}."
    else:
        by_time = sorted(times, key=lambda number: -times[number])
        most, least = (f"{milliseconds(times[n])} (layer {n})" for n in (by_time[0], by_time[-1]))
        text = f"{len(times)} layers, {unit}: from {least} to {most}."
    return paragraph(text, width, "  ", "  ")


def _stages(stages: tuple[StageWork, ...], width: int) -> list[str]:
    lines = [
        [
            str(stage.stage),
            ranks(stage.ranks),
            count(len(stage.layers)),
            milliseconds(stage.layers_ns / len(stage.layers)) if stage.layers else NONE,
            milliseconds(stage.layers_ns),
            milliseconds(stage.embedding_ns) if stage.embedding_ns else NONE,
            milliseconds(stage.other_ns) if stage.other_ns else NONE,
            milliseconds(stage.total_ns),
        ]
        for stage in stages
    ]
    columns = (
        "stage",
        "<~ranks",
        "layers",
        "one layer",
        "all layers",
        "embedding",
        "other",
        "total",
    )
    found = [
        "STAGES (GPU work of modules, ms an iteration without communication)",
        *table(columns, lines[:_MOST_STAGES], width),
    ]
    more = len(lines) - _MOST_STAGES
    return [*found, f"  {more:,} lines more: --json has them."] if more > 0 else found
