# SPDX-License-Identifier: Apache-2.0
"""The answer of `torch-trace memory --against` on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from megatron.torch_trace.allocator.difference.changes import Change, HeldChange
from megatron.torch_trace.allocator.difference.difference import (
    MemoryDifference,
    MemoryDifferences,
)
from megatron.torch_trace.allocator.holders import NO_STACK
from megatron.torch_trace.commands import terminal
from megatron.torch_trace.commands.memory_text.answer_text import frames
from megatron.torch_trace.wording import NONE, counted, ranks, size


def print_differences(console: Console, found: MemoryDifferences, top: int) -> None:
    """Several ranks in one table, then the one whose peak changes most in full."""
    if len(found.ranks) > 1:
        _print_ranks(console, found)
    _print_one(console, found.largest, top)
    for only, side in ((found.only_before, "BASE"), (found.only_after, "PATH")):
        if only:
            numbers = tuple(sorted({one.rank for one in only if one.rank is not None}))
            whose = f"rank {ranks(numbers)}" if numbers else counted(len(only), "process")
            terminal.sentence(console, f"Only {side} has {whose}.")


def signed(change: int) -> str:
    """`+1.23 GB`, `-512 B`; `0` of no change."""
    return f"{'+' if change > 0 else ''}{size(change)}" if change else "0"


def _print_ranks(console: Console, found: MemoryDifferences) -> None:
    table = terminal.table(
        "rank", "peak", "change", "at the end", "reserved", "free between", right=range(6)
    )
    for one in found.ranks:
        table.add_row(
            "?" if one.rank is None else str(one.rank),
            size(one.at_peak.total.after),
            signed(one.at_peak.total.change),
            signed(one.at_end.total.change),
            signed(one.reserved.change),
            signed(one.scattered.change) if one.scattered else NONE,
        )
    console.print(table)
    console.print()


def _print_one(console: Console, one: MemoryDifference, top: int) -> None:
    of = "" if one.rank is None else f"  rank {one.rank}"
    console.print(
        f"[bold]{terminal.literal(one.after.path)}[/]{of}  GPU {one.after.device}\n"
        f"against {terminal.literal(one.before.path)}",
        soft_wrap=True,
    )
    peak, reserved = one.at_peak.total, one.reserved
    terminal.sentence(
        console,
        f"Peak: {size(peak.after)} in use, {_than(peak)}; torch had at most "
        f"{size(reserved.after)} from CUDA, {_than(reserved)}.",
    )
    console.print()
    _print_held(console, "at the peak", one.at_peak, top)
    if one.at_end == one.at_peak:
        terminal.sentence(console, "At the end it is the same as at the peak.")
        console.print()
    else:
        _print_held(console, "at the end", one.at_end, top)


def _than(one: Change) -> str:
    if not one.change:
        return "as before"
    return f"{size(abs(one.change))} {'more' if one.change > 0 else 'less'} than before"


def _print_held(console: Console, moment: str, held: HeldChange, top: int) -> None:
    table = terminal.table(moment, "before", "after", "change", right=(1, 2, 3))
    for row in (*held.categories, held.total):
        table.add_row(row.name, *_sizes(row))
    console.print(table)
    console.print()
    if not held.stacks:
        return
    modules = terminal.table("module", "before", "after", "change", "", right=(1, 2, 3))
    for row in held.modules[:top]:
        modules.add_row(terminal.literal(row.name or NO_STACK), *_sizes(row), row.kind)
    _print_table(console, modules, len(held.modules) - top, "more module")
    stacks = terminal.table("stack", "for", "before", "after", "change", "", right=(2, 3, 4))
    for row in held.stacks[:top]:
        stacks.add_row(
            terminal.literal(frames(row.stack) or NO_STACK),
            row.category.words if row.category else "",
            *_sizes(row),
            row.kind,
        )
    _print_table(console, stacks, len(held.stacks) - top, "more stack")


def _print_table(console: Console, table: Table, more: int, what: str) -> None:
    console.print(table)
    if more > 0:
        console.print(f"  {counted(more, what)}: --top or --json shows them.")
    console.print()


def _sizes(row: Change) -> tuple[str, str, str]:
    before, after = (size(one) if one else NONE for one in (row.before, row.after))
    return before, after, signed(row.change)
