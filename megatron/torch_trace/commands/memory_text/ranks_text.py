# SPDX-License-Identifier: Apache-2.0
"""Ranks and stages side by side on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from megatron.torch_trace.allocator.answer import MemoryAnswer
from megatron.torch_trace.allocator.purpose.categories import CATEGORIES
from megatron.torch_trace.allocator.ranks.stages import RankMemory, stages_of
from megatron.torch_trace.commands import terminal
from megatron.torch_trace.wording import NONE, ranks, size

_MOST_RANKS = 16
"""Whose categories are shown one by one."""


def print_ranks(console: Console, found: Sequence[RankMemory]) -> None:
    """A line for each rank, the fullest one marked; then categories by stage, else by rank."""
    _print_lines(console, found)
    stages = stages_of(found)
    if stages:
        rows = [
            (
                f"stage {one.stage}, rank"
                f" {ranks(tuple(sorted(r.answer.rank or 0 for r in one.ranks)))}",
                one.fullest.answer,
            )
            for one in stages
        ]
        _print_categories(console, "at the fullest rank's peak", rows)
    elif len(found) <= _MOST_RANKS:
        named = [(_number(one.answer), one.answer) for one in found]
        _print_categories(console, "rank, at its peak", named)


def _number(answer: MemoryAnswer) -> str:
    return "?" if answer.rank is None else str(answer.rank)


def _scattered(answer: MemoryAnswer) -> int:
    return answer.fragmentation.scattered if answer.fragmentation else 0


def _print_lines(console: Console, found: Sequence[RankMemory]) -> None:
    folders = {one.answer.path.parent for one in found}
    if len(folders) == 1:
        console.print(f"[bold]{terminal.literal(folders.pop())}[/]", soft_wrap=True)
    located = any(one.facts.coordinates for one in found)
    sized = any(one.facts.capacity for one in found)
    holed = any(_scattered(one.answer) for one in found)
    columns = ["rank", "peak", "reserved", *["free between"] * holed]
    columns += ["never used"] * sized + ["coordinates"] * located + ["file"]
    table = terminal.table(*columns, right=range(3 + holed + sized))
    fullest = max(found, key=lambda one: one.answer.peak_bytes)
    for one in found:
        answer = one.answer
        mark = "  [bold]fullest[/]" if one is fullest else ""
        table.add_row(
            _number(answer),
            size(answer.peak_bytes),
            size(answer.peak_reserved),
            *([size(free) if (free := _scattered(answer)) else NONE] if holed else []),
            *([NONE if one.free is None else size(one.free)] if sized else []),
            *([terminal.literal(one.facts.words)] if located else []),
            f"{terminal.literal(answer.path if folders else answer.path.name)}{mark}",
        )
    console.print(table)
    console.print()


def _print_categories(
    console: Console, title: str, rows: Sequence[tuple[str, MemoryAnswer]]
) -> None:
    shown = [one for one in CATEGORIES if any(answer.categories.get(one) for _, answer in rows)]
    table = terminal.table(title, *(one.words for one in shown), right=range(1, len(shown) + 1))
    for name, answer in rows:
        held = (answer.categories.get(one, 0) for one in shown)
        table.add_row(name, *(size(one) if one else NONE for one in held))
    console.print(table)
    console.print()
