# SPDX-License-Identifier: Apache-2.0
"""`torch-trace slim`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from megatron.torch_trace import wording
from megatron.torch_trace.commands import options, terminal
from megatron.torch_trace.commands.options import output_names
from megatron.torch_trace.commands.options.one_trace import refuse_all_but_one_trace
from megatron.torch_trace.errors import DamagedTraceError
from megatron.torch_trace.format.categories import category
from megatron.torch_trace.reader import available_cores
from megatron.torch_trace.reader.workers import started_early
from megatron.torch_trace.rewrite.selection import (
    DROPS,
    PRESETS,
    Selection,
    parse_duration,
    parse_numbers,
)

if TYPE_CHECKING:
    from megatron.torch_trace.rewrite.slim.slim import SlimResult


def _listed(entries: dict[str, str]) -> str:
    return "; ".join(f"{name}: {meaning}" for name, meaning in entries.items())


@click.command("slim", epilog=options.exit_status())
@options.argument("path", metavar="FILE")
@options.output(
    required=True,
    help="File to write: .json, .json.gz or .json.zst; - for stdout.",
    refuse=output_names.TRACE,
)
@click.option("--preset", "presets", multiple=True, metavar="NAME", help=f"{_listed(PRESETS)}.")
@click.option("--step", "steps", metavar="N[-M]", help="Only these ProfilerStep numbers.")
@click.option("--from", "start", metavar="TIME", help="From this time after the first event: 1.5s.")
@click.option("--to", "end", metavar="TIME", help="Up to this time after the first event: 800ms.")
@click.option(
    "--category", "categories", metavar="C[,C]", help="Only these categories: kernel,cpu_op,..."
)
@click.option(
    "--min-dur",
    metavar="TIME",
    help="Leave out slices shorter than TIME (5us), except annotations.",
)
@click.option(
    "--max-name",
    type=click.IntRange(min=1),
    metavar="N",
    help="Cut names longer than N characters; different names stay different.",
)
@click.option("--stream", "streams", metavar="N[,N]", help="GPU work of these streams only.")
@click.option("--rank", "ranks", metavar="N[,N]", help="Of a merged trace, only these ranks.")
@click.option("--drop", "drops", multiple=True, metavar="WHAT[,WHAT]", help=f"{_listed(DROPS)}.")
@options.force
@options.strict
@options.jobs
def command(
    path: str,
    output: str,
    presets: tuple[str, ...],
    steps: str | None,
    start: str | None,
    end: str | None,
    categories: str | None,
    min_dur: str | None,
    max_name: int | None,
    streams: str | None,
    ranks: str | None,
    drops: tuple[str, ...],
    force: bool,
    strict: bool,
    jobs: int | None,
) -> None:
    """Write a smaller trace, or one that Perfetto shows whole.

    \b
    torch-trace slim rank-0.json.gz -o small.json.gz --drop python,shapes
    torch-trace slim rank-0.json.gz -o step.json.gz --step 5 --preset perfetto
    torch-trace slim rank-0.json.gz -o gpu.json.gz --preset overlap --min-dur 2us

    The new trace has the same metadata, track names and track order. Arrows that lost an end are
    left out.
    """
    refuse_all_but_one_trace(path, "slim")
    named = _categories(categories)
    selection = Selection(
        steps=parse_numbers(steps, "--step") if steps else None,
        start_ns=parse_duration(start, "--from") if start else None,
        end_ns=parse_duration(end, "--to") if end else None,
        categories=named,
        named=named or frozenset(),
        min_dur_ns=parse_duration(min_dur, "--min-dur") if min_dur else 0,
        max_name=max_name or 0,
        streams=parse_numbers(streams, "--stream") if streams else None,
        ranks=parse_numbers(ranks, "--rank") if ranks else None,
        drop=frozenset(word.strip() for drop in drops for word in drop.split(",")),
    )
    for preset in presets:
        selection = selection.with_preset(preset)
    workers = jobs or available_cores()
    with started_early(workers - 1, [path], "megatron.torch_trace.rewrite.slim.slim"):
        # Imported here: meanwhile the other processes do the same.
        from megatron.torch_trace.rewrite.slim.slim import slim

        passes = 1 + selection.separate_tracks
        with terminal.progress(Path(path).name, path, passes=passes) as on_read:
            result = slim(
                path,
                output,
                selection,
                force=force,
                strict=strict,
                workers=workers,
                on_read=on_read,
            )
    if result.absent:
        terminal.say(f"--category {','.join(result.absent)}: no such event in {path}.")
    if output != "-":
        _report(output, result)
    if result.damage:
        raise DamagedTraceError(f"{path}: {result.damage.sentence()}.")


def _categories(text: str | None) -> frozenset[str] | None:
    return frozenset(category(word.strip()) for word in text.split(",")) if text else None


def _report(output: str, result: SlimResult) -> None:
    """Before and after, by category."""
    table = terminal.table("category", "events", "kept", "bytes", "kept", right=(1, 2, 3, 4))
    rows = sorted(result.before.items(), key=lambda item: -item[1][1])
    for name, (events, size) in rows:
        kept_events, kept_size = result.after.get(name, (0, 0))
        table.add_row(
            terminal.literal(name or "(none)"),
            f"{events:,}",
            f"{kept_events:,}",
            wording.size(size),
            wording.size(kept_size),
        )
    console = terminal.console()
    console.print(table)
    if result.moved_annotations or result.moved_crossing:
        moved = [
            wording.counted(number, *nouns)
            for number, nouns in (
                (result.moved_annotations, ("annotation", "annotations")),
                (
                    result.moved_crossing,
                    ("slice that crossed another one", "slices that crossed others"),
                ),
            )
            if number
        ]
        console.print(f"Moved to tracks of their own: {', '.join(moved)}.")
    if result.clipped:
        console.print(
            f"Cut {wording.counted(result.clipped, 'kernel')} that lasted more than a second into "
            "the next kernel of the same stream; the arguments keep the duration that was written."
        )
    on_disk = Path(output).stat().st_size
    console.print(
        f"Wrote {terminal.literal(output)}: {wording.size(result.raw_bytes)} of JSON is now "
        f"{wording.size(result.written_bytes)}, {wording.size(on_disk)} on disk."
    )
