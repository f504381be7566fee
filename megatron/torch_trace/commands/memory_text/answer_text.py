# SPDX-License-Identifier: Apache-2.0
"""The answer of `torch-trace memory` on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from megatron.torch_trace import wording
from megatron.torch_trace.allocator.answer import MemoryAnswer
from megatron.torch_trace.allocator.findings import memory_findings
from megatron.torch_trace.allocator.stack_table import Stack
from megatron.torch_trace.commands import terminal

_FRAMES = 4


def print_answers(console: Console, answers: Sequence[MemoryAnswer], top: int) -> None:
    """Several ranks in one table, then the fullest in full; two are both in full."""
    if len(answers) > 1:
        _print_ranks(console, answers)
    for one in answers if len(answers) <= 2 else _fullest(answers):
        _print_one(console, one, top)


def _fullest(answers: Sequence[MemoryAnswer]) -> list[MemoryAnswer]:
    return [max(answers, key=lambda one: one.peak_bytes)]


def _print_ranks(console: Console, answers: Sequence[MemoryAnswer]) -> None:
    """A line each, the fullest one marked."""
    folders = {one.path.parent for one in answers}
    if len(folders) == 1:
        console.print(f"[bold]{terminal.literal(folders.pop())}[/]", soft_wrap=True)
    table = terminal.table("rank", "peak", "reserved", "free between", "file", right=(0, 1, 2, 3))
    fullest = _fullest(answers)[0]
    for one in answers:
        mark = "  [bold]fullest[/]" if one is fullest else ""
        table.add_row(
            "?" if one.rank is None else str(one.rank),
            wording.size(one.peak_bytes),
            wording.size(one.peak_reserved),
            wording.size(one.fragmentation.scattered) if one.fragmentation else wording.NONE,
            f"{terminal.literal(one.path if folders else one.path.name)}{mark}",
        )
    console.print(table)
    console.print()


def _print_one(console: Console, one: MemoryAnswer, top: int) -> None:
    of = "" if one.rank is None else f"  rank {one.rank}"
    console.print(f"[bold]{terminal.literal(one.path)}[/]{of}  GPU {one.device}", soft_wrap=True)
    terminal.sentence(
        console,
        f"Peak: {wording.size(one.peak_bytes)} in use; torch had at most "
        f"{wording.size(one.peak_reserved)} from CUDA.{_history(one)}",
    )
    console.print()
    _print_categories(console, one)
    _print_holders(console, one, top)
    for found in memory_findings(one):
        terminal.sentence(
            console,
            f"[bold red]![/] \\[{found.code}] {terminal.literal(found.sentence)} "
            f"{terminal.literal(found.advice)}",
        )
    console.print()


def _history(one: MemoryAnswer) -> str:
    if not one.entries:
        return " There is no history: the peak is the moment of the snapshot."
    lasts = f" over {wording.seconds(one.seconds)}" if one.seconds else ""
    return f" The history has {wording.counted(one.entries, 'entry', 'entries')}{lasts}."


def _print_categories(console: Console, one: MemoryAnswer) -> None:
    table = terminal.table("at the peak", "bytes", "share", right=(1, 2))
    for category, size in sorted(one.categories.items(), key=lambda item: -item[1]):
        if size:
            share = wording.percent(size / one.peak_bytes)
            table.add_row(category.words, wording.size(size), share)
    console.print(table)
    console.print()


def _print_holders(console: Console, one: MemoryAnswer, top: int) -> None:
    table = terminal.table("holder", "bytes", "blocks", "for", "stack", right=(1, 2))
    for holder in one.holders[:top]:
        table.add_row(
            terminal.literal(holder.module or "allocated before the history"),
            wording.size(holder.size),
            f"{holder.blocks:,}",
            holder.category.words,
            terminal.literal(frames(holder.stack)),
        )
    console.print(table)
    more = len(one.holders) - top
    if more > 0:
        console.print(f"  {wording.counted(more, 'more holder')}: --top or --json shows them.")
    console.print()


def frames(stack: Stack) -> str:
    """The innermost frames, files without their folders."""
    shown = [frame.rpartition("/")[2] for frame in stack[:_FRAMES]]
    return " < ".join(shown) + (" < ..." if len(stack) > _FRAMES else "")
