# SPDX-License-Identifier: Apache-2.0
"""`torch-trace memory`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from megatron.torch_trace import wording
from megatron.torch_trace.commands import options, terminal
from megatron.torch_trace.errors import DamagedTraceError, StrictError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from megatron.torch_trace.allocator.answer import MemoryAnswer
    from megatron.torch_trace.allocator.holders import Holder

_FRAMES = 4


@click.command("memory", epilog=options.exit_status())
@options.paths
@options.top(8, help="Holders that are listed for each process.")
@options.as_json
@options.strict
def command(paths: tuple[str, ...], top: int, as_json: bool, strict: bool) -> None:
    """Say who holds the GPU's memory, when it peaks, what grows.

    \b
    torch-trace memory rank-0.memory_snapshot.pickle
    torch-trace memory iter-0000005/

    PATH is an allocator snapshot, as torch.cuda.memory._dump_snapshot and Megatron's
    --record-memory-history write it, a trace recorded with --torch-profile-profile-memory, or a
    folder with those of several ranks. A snapshot is a pickle: it is read as data, and nothing in
    it is run.
    """
    from megatron.torch_trace.allocator.answer import answers_of
    from megatron.torch_trace.allocator.json_answer import document
    from megatron.torch_trace.allocator.memory_files import find_memory_files

    files = find_memory_files(paths)
    with terminal.progress_of_many("memory", files) as on_read:
        answers = [one for file in files for one in answers_of(file, on_read=on_read)]
    damaged = [str(one.path) for one in answers if one.cut_short or one.odd]
    said = f"damaged: {', '.join(damaged)}; the answer is about what is whole."
    if damaged and strict:
        raise StrictError(said)
    if not answers:
        raise UsageError(f"{paths[0]}: the snapshot is empty: no memory and no history in it.")
    if as_json:
        click.echo(json.dumps(document(answers, top)))
    else:
        console = terminal.console()
        if len(answers) > 1:
            _print_ranks(console, answers)
        for one in answers if len(answers) <= 2 else _fullest(answers):
            _print_one(console, one, top)
    if damaged:
        raise DamagedTraceError(said)


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
    from megatron.torch_trace.allocator.findings import memory_findings

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
            terminal.literal(_frames(holder)),
        )
    console.print(table)
    more = len(one.holders) - top
    if more > 0:
        console.print(f"  {wording.counted(more, 'more holder')}: --top or --json shows them.")
    console.print()


def _frames(holder: Holder) -> str:
    """The innermost frames, files without their folders."""
    shown = [frame.rpartition("/")[2] for frame in holder.stack[:_FRAMES]]
    return " < ".join(shown) + (" < ..." if len(holder.stack) > _FRAMES else "")
