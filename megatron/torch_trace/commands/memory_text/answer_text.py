# SPDX-License-Identifier: Apache-2.0
"""The answer of `torch-trace memory` on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from megatron.torch_trace import wording
from megatron.torch_trace.allocator.answer import MemoryAnswer
from megatron.torch_trace.allocator.holders import NO_STACK
from megatron.torch_trace.allocator.ranks.rank_findings import findings_of_all
from megatron.torch_trace.allocator.ranks.stages import RankMemory
from megatron.torch_trace.allocator.stack_table import Stack
from megatron.torch_trace.commands import terminal
from megatron.torch_trace.commands.memory_text.ranks_text import print_ranks

_FRAMES = 4


def print_answers(console: Console, ranks: Sequence[RankMemory], top: int) -> None:
    """Several ranks side by side, then the fullest in full; two are both in full."""
    if len(ranks) > 1:
        print_ranks(console, ranks)
    by_peak = sorted(ranks, key=lambda one: -one.answer.peak_bytes)
    for number, one in enumerate(ranks if len(ranks) <= 2 else by_peak[:1]):
        if number:
            console.print()
        _print_one(console, one.answer, top)
    for found in findings_of_all(ranks):
        console.print()
        terminal.sentence(
            console,
            f"[bold red]finding {found.code}:[/] {terminal.literal(found.sentence)}\n"
            f"> {terminal.literal(found.advice)}",
        )


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
            terminal.literal(holder.module or NO_STACK),
            wording.size(holder.size),
            f"{holder.blocks:,}",
            holder.category.words,
            # What has no stack, such as a buffer of DDP, is told by its name alone.
            "" if holder.stack == (holder.module,) else terminal.literal(frames(holder.stack)),
        )
    console.print(table)
    more = len(one.holders) - top
    if more > 0:
        console.print(f"  {wording.counted(more, 'more holder')}: --top or --json shows them.")


def frames(stack: Stack) -> str:
    """The innermost frames, files without their folders."""
    shown = [frame.rpartition("/")[2] for frame in stack[:_FRAMES]]
    return " < ".join(shown) + (" < ..." if len(stack) > _FRAMES else "")
