# SPDX-License-Identifier: Apache-2.0
"""`torch-trace info`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from megatron.torch_trace import wording
from megatron.torch_trace.commands import options, terminal
from megatron.torch_trace.commands.terminal.surveys import surveys_of
from megatron.torch_trace.errors import DamagedTraceError
from megatron.torch_trace.files.sources import find_traces, skipped_lines
from megatron.torch_trace.format.json_text import text_of
from megatron.torch_trace.inspect.facts import advice, device, facts, problems, rank, versions

if TYPE_CHECKING:
    from rich.console import Console

    from megatron.torch_trace.inspect.survey import Survey


@click.command("info", epilog=options.exit_status())
@options.paths
@options.as_json
@options.strict
@options.jobs
def command(paths: tuple[str, ...], as_json: bool, strict: bool, jobs: int | None) -> None:
    """Say what traces hold, what is wrong with them, how to open them.

    \b
    torch-trace info rank-0.pt.trace.json.gz
    torch-trace info iter-0000005/

    For one trace: rank, coordinates, host, device, versions, the profiler's flags, steps, span,
    size, events and bytes by category, process groups. For several: one line each.
    """
    sources = find_traces(paths)
    surveys = surveys_of(sources, jobs, strict=strict)
    if as_json:
        skipped = [{"file": str(p), "reason": reason} for p, reason in sources.skipped]
        click.echo(text_of({"traces": [facts(s) for s in surveys], "skipped_files": skipped}))
    else:
        console = terminal.console()
        if len(surveys) > 1:
            _print_list(console, surveys)
        else:
            for one in surveys:
                _print_one(console, one)
        for line in skipped_lines(sources.skipped):
            terminal.sentence(console, terminal.literal(line))
    damaged = [str(one.path) for one in surveys if one.damage]
    if damaged:
        raise DamagedTraceError(
            f"damaged: {', '.join(damaged)}; `torch-trace check` lists every fault."
        )


def _print_list(console: Console, surveys: list[Survey]) -> None:
    """One line each; what all have in common stands above, so that 80 columns are enough."""
    folders = {one.path.parent for one in surveys}
    devices = {device(one) for one in surveys}
    common = [str(folder) for folder in folders] if len(folders) == 1 else []
    common += [name for name in devices if name] if len(devices) == 1 else []
    console.print(
        f"[bold]{len(surveys)} traces[/]  {terminal.literal('  '.join(common))}", soft_wrap=True
    )
    split = {d for one in surveys for d, index in one.metadata.coordinates.items() if index}
    table = terminal.table("rank", "at", "steps", "length", "events", "JSON", right=(0, 3, 4, 5))
    if len(devices) > 1:
        table.add_column("device", overflow="fold")
    table.add_column("file", overflow="fold")
    for one in surveys:
        wrong = "damaged" if one.damage else "faults" if one.has_faults else ""
        where = " ".join(f"{k}{v}" for k, v in one.metadata.coordinates.items() if k in split)
        number = rank(one)
        file = terminal.literal(one.path.name if len(folders) == 1 else one.path)
        table.add_row(
            "merged" if one.metadata.merged else "?" if number is None else str(number),
            where,
            _steps(one),
            _span(one),
            f"{one.events:,}",
            wording.size(one.raw_bytes),
            *([terminal.literal(device(one) or "-")] if len(devices) > 1 else []),
            f"{file}  [bold red]{wrong}[/]" if wrong else file,
        )
    console.print(table)


def _steps(one: Survey) -> str:
    numbers = tuple(number for number, *_ in one.steps)
    return wording.ranks(numbers, most=len(numbers)) or "none"


def _span(one: Survey) -> str:
    return wording.duration(one.span_ns[1] - one.span_ns[0]) if one.span_ns else "none"


def _print_one(console: Console, one: Survey) -> None:
    metadata = one.metadata
    console.print(f"[bold]{terminal.literal(one.path)}[/]", soft_wrap=True)
    table = terminal.table("", "")
    table.show_header = False
    number = rank(one)
    where = " ".join(f"{k}{v}" for k, v in metadata.coordinates.items())
    if metadata.merged is not None:
        names = ", ".join(str(entry.get("rank")) for entry in metadata.merged.get("ranks", []))
        table.add_row("merged of ranks", names)
    else:
        of = f" of {metadata.world_size}" if metadata.world_size else ""
        shown = "unknown" if number is None else f"{number}{of}"
        table.add_row("rank", f"{shown}{f'  ({where})' if where else ''}")
    table.add_row("host", terminal.literal(metadata.own.get("host") or "not recorded"))
    table.add_row("device", terminal.literal(device(one) or "not recorded"))
    found = ", ".join(f"{k[:-8]} {v}" for k, v in versions(one).items())
    table.add_row("versions", terminal.literal(found or "not recorded"))
    table.add_row("flags on", terminal.literal(", ".join(metadata.flags) or "none"))
    table.add_row("steps", _steps(one))
    table.add_row("length", _span(one))
    packed = ""
    if one.file_bytes and one.compression != "none":
        packed = f", {wording.size(one.file_bytes)} as {one.compression}"
    table.add_row("size", f"{wording.size(one.raw_bytes)} of JSON{packed}")
    if one.launches:
        table.add_row("launches", _launches(one))
    if slim := metadata.own.get("slim"):
        table.add_row("slimmed", terminal.literal(_words(slim)))
    console.print(table)
    _print_categories(console, one)
    _print_groups(console, one)
    console.print()
    for sentence in problems(one):
        terminal.sentence(console, f"[bold red]![/] {terminal.literal(sentence)}")
    for sentence in advice(one):
        console.print(f"[green]>[/] {terminal.literal(sentence)}", soft_wrap=True)


def _launches(one: Survey) -> str:
    parts = [f"{one.launches:,}"]
    if one.launches_without_work:
        parts.append(f"{one.launches_without_work:,} of them without GPU work")
    if one.captured:
        parts.append(f"and {one.captured:,} into a CUDA graph")
    return ", ".join(parts)


def _words(slim: Any) -> str:
    """What a trace was slimmed to: `steps 6; drop shapes`."""
    if not isinstance(slim, dict):
        return str(slim)
    return "; ".join(
        f"{key} {', '.join(map(str, value)) if isinstance(value, list) else value}"
        for key, value in slim.items()
    )


def _print_categories(console: Console, one: Survey) -> None:
    table = terminal.table("category", "events", "bytes", "share", right=(1, 2, 3))
    total = sum(size for _, size in one.account.values()) or 1
    for name, (events, size) in sorted(one.account.items(), key=lambda item: -item[1][1]):
        table.add_row(
            terminal.literal(name or "(none)"),
            f"{events:,}",
            wording.size(size),
            wording.percent(size / total),
        )
    console.print()
    console.print(table)


def _print_groups(console: Console, one: Survey) -> None:
    groups = [g for g in one.metadata.process_groups if len(g["ranks"]) > 1]
    if not groups:
        return
    table = terminal.table("process group", "name", "size", "ranks", right=(2,))
    seen: dict[str, list[Any]] = {}
    for group in groups:
        ranks = ", ".join(map(str, group["ranks"][:8])) + (
            ", ..." if len(group["ranks"]) > 8 else ""
        )
        seen.setdefault(ranks, []).append(group)
    for ranks, members in seen.items():
        first, *others = members
        more = f" and {len(others)} more" if others else ""
        table.add_row(
            terminal.literal(f"{first.get('pg_desc')}{more}"),
            terminal.literal(first.get("pg_name")),
            str(len(first["ranks"])),
            terminal.literal(ranks),
        )
    console.print()
    console.print(table)
