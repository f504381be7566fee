# SPDX-License-Identifier: Apache-2.0
"""The tree of modules of the first and the last stage; layers are one line together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from megatron.torch_trace.analysis.modules.coverage import ModuleAccount
from megatron.torch_trace.analysis.modules.ranges import STACKS
from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult
from megatron.torch_trace.analysis.results.replayed_iterations import why_no_modules
from megatron.torch_trace.report.module_nodes import ModuleNode, Path, module_nodes, walk
from megatron.torch_trace.report.per_iteration import steps_by_rank
from megatron.torch_trace.report.section import Section, Subject
from megatron.torch_trace.report.sections import stage_work
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
    share,
    some_ms,
    text,
)
from megatron.torch_trace.wording import counted, flop_rate, milliseconds, percent, ranks

_MOST = 600
_DEPTH = 5
"""Levels of modules that a terminal shows."""
_OUTSIDE, _BRIEF_OUTSIDE = 12, 4
_LAYERS = 12
_LEAST_OWN = 0.01
"""Share of GPU work from which a terminal shows a module's part in no module below it."""
_ENGINE = "autograd::engine::evaluate_function: "
_OPTIONAL = 3
_PASSES = ("time_ns", "recompute_time_ns", "backward_time_ns")
_OWN = ("self_ns", "recompute_self_ns", "backward_self_ns")
_HEADING = "MODULES (ms and share of the GPU work they launched): "


def section(subject: Subject) -> Section:
    """What the stages compute, and a tree for the first and the last of them."""
    analysis, title = subject.analysis, "Modules"
    if analysis.is_of_the_cpu:
        return Section(
            "modules", title, "No GPU work was recorded; see the section Time of the CPU."
        )
    shown = first_and_last(analysis, lambda rank: any(row.total_ns for row in rank.modules))
    if not shown:
        missing = (
            "The traces have neither spans of modules (--torch-profile-spans modules) nor stacks."
        )
        if any(rank.modules for rank in analysis.ranks):
            missing = "No module launched GPU work."
        return Section("modules", title, why_no_modules(analysis) or missing)
    trees = [_tree(rank, label(rank, shown), 2 * subject.top) for rank in shown]
    stages, classes = stage_work.tables(analysis)
    tables = [*trees, stages, classes]
    data = _drawn(analysis, shown) if subject.draws else {}
    return Section("modules", title, tables=tables, data=data)


def _drawn(analysis: Analysis, shown: tuple[RankResult, ...]) -> dict[str, Any]:
    """Nothing where no icicle can be drawn."""
    from megatron.torch_trace.report.figures.module_icicle import module_icicle
    from megatron.torch_trace.report.figures.module_ladder import module_ladder

    steps = steps_by_rank(analysis)
    icicles = [module_icicle(rank, label(rank, shown), steps[rank.rank]) for rank in shown]
    ladders = [module_ladder(rank, label(rank, shown), steps[rank.rank]) for rank in shown]
    data = {
        **stage_work.figure(analysis),
        "icicles": [one for one in icicles if one],
        "ladders": [one for one in ladders if one],
    }
    return data if data["icicles"] else {}


def _tree(rank: RankResult, name: str, most: int) -> Table:
    account = rank.module_account
    whole = account.gpu_ns if account else 0
    every = list(walk(module_nodes(rank.modules)))
    busy = [(level, node) for level, node in every if node.total_ns]
    brief = _heaviest(busy, most)
    rows = []
    for level, node in busy[:_MOST]:
        rows.append(_row(rank.rank, level + 1, node, whole, spare=node.path not in brief))
        below = [child for child in node.children if child.total_ns]
        if below and node.own_ns:
            little = not whole or node.own_ns / whole < _LEAST_OWN
            spare = little or not any(child.path in brief for child in below)
            rows.append(_itself(level + 2, node, whole, spare=spare))
    if account is not None and whole and account.unattributed_ns:
        rows.append(_in_no_module(account))
    rest = []
    if len(busy) > _MOST:
        rest.append(in_json(len(busy) - _MOST, "module"))
    if len(every) > len(busy):
        idle = len(every) - len(busy)
        rest.append(
            f"{counted(idle, 'module')} without GPU work {'is' if idle == 1 else 'are'} left out."
        )
    stacks = bool(account and account.source == STACKS)
    if stacks:
        name += ", from Python stacks"
    shapes = bool(rank.shapes)
    said = (_outside(account, _BRIEF_OUTSIDE, shapes), _layers([node for _, node in busy]))
    return Table(
        f"tree-{rank.rank}",
        f"{name[0].upper()}{name[1:]}: GPU work by the module that launched it",
        _columns(stacks=stacks),
        tuple(rows),
        " ".join(rest),
        brief=_HEADING + name,
        told="",
        note=_outside(account, _OUTSIDE, shapes),
        said="\n".join(said),
        rank=rank.rank,
    ).without_empty(_OPTIONAL)


def _columns(*, stacks: bool) -> tuple[Column, ...]:
    # Paths of stacks are made of classes already.
    return (
        Column("module", number=False, cut=True),
        Column("class", number=False, spare=True, brief=None if stacks else ""),
        Column("calls", sums="count"),
        Column("forward ms", brief="forward", sums="ms"),
        Column("recompute ms", brief="recompute", sums="ms"),
        Column("backward ms", brief="backward", sums="ms"),
        Column("total ms", brief=None, hint="GPU work, modules below included", sums="ms"),
        Column("share", hint="of all GPU work in the window"),
        Column(
            "TFLOP/s",
            hint="FLOPs of matrix products and attention / time without communication",
        ),
        Column("exposed comm ms", brief="exposed comm", sums="ms"),
    )


def _heaviest(busy: Sequence[tuple[int, ModuleNode]], most: int) -> set[Path]:
    """Paths of the modules that a terminal shows."""
    near = [entry for entry in busy if entry[0] < _DEPTH]
    near.sort(key=lambda entry: (-entry[1].total_ns, entry[0]))
    return {node.path for _, node in near[:most]}


def _row(rank: int, level: int, node: ModuleNode, whole: int, *, spare: bool) -> Row:
    calls = node.sum("calls")
    cells = (
        Cell(node.name, full=".".join(node.path)),
        text(node.type, ", ".join(sorted({row.type for row in node.rows}))),
        amount(calls),
        *(some_ms(node.sum(name)) for name in _PASSES),
        ms(node.total_ns),
        share(node.total_ns / whole if whole else None),
        Cell(flop_rate(node.tflops), sort=node.tflops),
        some_ms(node.sum("exposed_communication_ns")),
    )
    moments = [row.longest for row in node.rows if row.longest]
    moment = max(moments, key=lambda one: one.duration_ns, default=None)
    return Row(cells, at(rank, moment), level=level, spare=spare)


def _itself(level: int, node: ModuleNode, whole: int, *, spare: bool) -> Row:
    """What a module launches outside of its parts, the loss for one."""
    cells = (
        *(Cell(one) for one in ("(itself)", "", "")),
        *(some_ms(node.sum(name)) for name in _OWN),
        ms(node.own_ns),
        share(node.own_ns / whole if whole else None),
        *(Cell(""),) * 2,
    )
    return Row(cells, level=level, spare=spare)


def _in_no_module(account: ModuleAccount) -> Row:
    cells = (
        *(Cell(one) for one in ("(in no module)", "", "", "", "", "")),
        ms(account.unattributed_ns),
        share(account.unattributed_ns / account.gpu_ns),
        *(Cell(""),) * 2,
    )
    return Row(cells, level=1)


def _outside(account: ModuleAccount | None, most: int, has_shapes: bool) -> str:
    if account is None or not account.gpu_ns:
        return ""
    said = []
    named = [
        f"{row.operator.removeprefix(_ENGINE)} {milliseconds(row.time_ns)}"
        for row in account.outside[:most]
    ]
    more = len(account.outside) - len(named)
    if named:
        rest = f", and {counted(more, 'more operator')}" if more > 0 else ""
        said.append(f"In no module, ms: {', '.join(named)}{rest}.")
    if account.microbatch_ns and account.microbatch_unattributed_ns:
        lost = percent(account.microbatch_unattributed_ns / account.microbatch_ns)
        said.append(f"Within micro-batches {lost} is in no module.")
    if account.replayed:
        found = percent(account.replayed_found / account.replayed)
        said.append(
            f"CUDA graphs launched {counted(account.replayed, 'kernel')}: {found} of them are "
            "known by a step without graphs in this trace."
            if account.replayed_found
            else f"CUDA graphs launched {counted(account.replayed, 'kernel')}, whose modules only "
            "a window that begins before the graphs are captured would tell "
            "(--torch-profile-iterations 1-4)."
        )
    if not has_shapes:
        said.append("\nTFLOP/s are unknown without shapes (--torch-profile-record-shapes).")
    return " ".join(said)


def _layers(nodes: Sequence[ModuleNode]) -> str:
    """Layer by layer, of the heaviest list of modules; the extremes where they are many."""
    lists = [node for node in nodes if node.is_list]
    if not lists:
        return ""
    heaviest = max(lists, key=lambda node: node.total_ns)
    # How long a collective in a layer's hooks takes is mostly how late other ranks are.
    times = {
        int(row.module.rsplit(".", 1)[1]): row.total_ns - row.communication_ns
        for row in heaviest.rows
    }
    unit = "ms" + " without communication" * any(row.communication_ns for row in heaviest.rows)
    if len(times) <= _LAYERS:
        listed = ", ".join(milliseconds(times[number]) for number in sorted(times))
        return f"Layers {ranks(tuple(sorted(times)))}, {unit}: {listed}."
    by_time = sorted(times, key=lambda number: -times[number])
    most, least = (f"{milliseconds(times[n])} (layer {n})" for n in (by_time[0], by_time[-1]))
    return f"{len(times)} layers, {unit}: from {least} to {most}."
