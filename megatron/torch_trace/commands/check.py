# SPDX-License-Identifier: Apache-2.0
"""`torch-trace check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from megatron.torch_trace import wording
from megatron.torch_trace.commands import options, terminal
from megatron.torch_trace.commands.terminal.surveys import surveys_of
from megatron.torch_trace.errors import DamagedTraceError, StrictError
from megatron.torch_trace.files.sources import find_traces, skipped_lines
from megatron.torch_trace.format.json_text import text_of
from megatron.torch_trace.inspect.facts import problems, rank

if TYPE_CHECKING:
    from rich.console import Console

    from megatron.torch_trace.inspect.survey import Survey


@click.command(
    "check",
    epilog=options.exit_status(
        s0="no fault", s3="at least one fault", s4="at least one fault, with --strict"
    ),
)
@options.paths
@options.as_json
@options.strict
@options.jobs
def command(paths: tuple[str, ...], as_json: bool, strict: bool, jobs: int | None) -> None:
    """Find every fault of traces, with its count and its first byte.

    \b
    torch-trace check iter-0000005/

    Faults are: damaged text, impossible times, and GPU work that is missing for its launches, is
    written again, or is on another clock than the CPU. Two other things are reported and are not
    faults: slices that cross, which Perfetto before v57 does not show, and arrows with one end.
    """
    sources = find_traces(paths)
    found = surveys_of(sources, jobs, crossing=True)
    faulty = [one for one in found if one.has_faults]
    if as_json:
        click.echo(
            text_of(
                {
                    "traces": [_facts(one) for one in found],
                    "skipped_files": [
                        {"file": str(p), "reason": reason} for p, reason in sources.skipped
                    ],
                    "ok": not faulty,
                }
            )
        )
    else:
        console = terminal.console()
        for one in found:
            _print(console, one)
        for line in skipped_lines(sources.skipped):
            terminal.sentence(console, terminal.literal(line))
    if faulty:
        kind = StrictError if strict else DamagedTraceError
        verb = "has" if len(faulty) == 1 else "have"
        of_all = f"{len(faulty)} of {wording.counted(len(found), 'trace')}"
        count = f"{of_all} {verb} faults"
        raise kind(f"{count}: {', '.join(str(one.path) for one in faulty)}.")


def _facts(one: Survey) -> dict[str, Any]:
    return {
        "file": str(one.path),
        "rank": rank(one),
        "ok": not one.has_faults,
        "events": one.events,
        "raw_bytes": one.raw_bytes,
        "damage": one.damage.as_json(),
        "odd_times": {k: {"count": o.count, "offset": o.offset} for k, o in one.odd.items()},
        "launches": {
            "launches": one.launches,
            "kernel_launches": one.kernel_launches,
            "without_kernel": one.launches_without_work,
            "captured": one.captured,
            "gpu_events": one.gpu_events,
            "gpu_events_without_launch": one.gpu_events_without_launch,
        },
        "clock_offset_ns": None if one.clock_offset is None else one.clock_offset.offset_ns,
        "duplicate_gpu_events": one.duplicates,
        "crossing_slices": one.crossing,
        "annotations_on_tracks": one.annotations_on_tracks,
        "flows_with_one_end": one.flows_with_one_end,
        "problems": problems(one),
    }


def _print(console: Console, one: Survey) -> None:
    verdict = "[bold red]faults[/]" if one.has_faults else "[bold green]ok[/]"
    size = f"{one.events:,} events, {wording.size(one.raw_bytes)}"
    console.print(f"{verdict}  [bold]{terminal.literal(one.path)}[/]  {size}", soft_wrap=True)
    table = terminal.table("", "count", "first at byte", "", right=(1, 2))
    table.show_header = bool(one.damage or one.odd)
    for kind, count, offsets in one.damage:
        from megatron.torch_trace.reader.damage import KINDS

        first = f"{offsets[0]:,}" if offsets else ""
        table.add_row("[red]damage[/]", f"{count:,}", first, KINDS[kind])
    for kind, odd in sorted(one.odd.items()):
        table.add_row(
            "[red]time[/]", f"{odd.count:,}", f"{odd.offset:,}", f"slices {terminal.literal(kind)}"
        )
    if one.metadata.maker is not None:
        table.add_row("[red]format[/]", "", "", one.metadata.maker.sentence)
    bad = one.gpu_record.is_missing or one.gpu_record.is_incomplete
    launches = "[red]launches[/]" if bad else "launches"
    if one.launches_without_work:
        said = f"of {wording.counted(one.kernel_launches, 'kernel launch', 'kernel launches')}"
        verb = "has" if one.launches_without_work == 1 else "have"
        table.add_row(launches, f"{one.launches_without_work:,}", "", f"{said} {verb} no GPU work")
    if one.gpu_events_without_launch:
        verb = "has" if one.gpu_events_without_launch == 1 else "have"
        said = f"of {wording.counted(one.gpu_events, 'GPU row')} {verb} no launch"
        table.add_row(launches, f"{one.gpu_events_without_launch:,}", "", said)
    if one.clock_offset is not None:
        table.add_row("[red]clock[/]", "", "", one.clock_offset.sentence)
    if one.duplicates:
        table.add_row("[red]twice[/]", f"{one.duplicates:,}", "", "GPU rows that are written again")
    if one.captured:
        table.add_row(
            "captured",
            f"{one.captured:,}",
            "",
            "launches into a CUDA graph that is being captured; they run nothing",
        )
    if one.crossing or one.annotations_on_tracks:
        said = _on_shared_tracks(one.crossing or 0, one.annotations_on_tracks)
        table.add_row("perfetto", "", "", said)
    if one.flows_with_one_end:
        said = "arrows with only one end; torch-trace slim leaves them out"
        table.add_row("arrows", f"{one.flows_with_one_end:,}", "", said)
    if table.row_count:
        console.print(table)


def _on_shared_tracks(crossing: int, annotations: int) -> str:
    """A sentence about slices that older versions of Perfetto do not show."""
    parts = []
    if crossing:
        parts.append(wording.counted(crossing, "slice crosses", "slices cross") + " another one")
    if annotations:
        parts.append(
            wording.counted(annotations, "annotation shares", "annotations share")
            + " a track with other slices"
        )
    return (
        f"{' and '.join(parts)}: Perfetto before v57 drops some slices; torch-trace slim --preset "
        "perfetto keeps all"
    )
