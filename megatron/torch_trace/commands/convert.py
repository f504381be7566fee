# SPDX-License-Identifier: Apache-2.0
"""`torch-trace convert`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from megatron.torch_trace import wording
from megatron.torch_trace.commands import options, terminal
from megatron.torch_trace.commands.options import output_names
from megatron.torch_trace.errors import DamagedTraceError

if TYPE_CHECKING:
    from megatron.torch_trace.perfetto.convert import Conversion


@click.command("convert", epilog=options.exit_status())
@options.paths
@options.output(
    required=True,
    help="File to write: .pftrace, .pftrace.gz or .pftrace.zst; - for stdout.",
    refuse=output_names.TIMELINE,
)
@click.option(
    "--args",
    type=click.Choice(("some", "all", "none")),
    default="some",
    show_default=True,
    help="Arguments of events to keep: the useful ones, all, or none.",
)
@options.force
@options.strict
@options.jobs
def command(
    paths: tuple[str, ...], output: str, args: str, force: bool, strict: bool, jobs: int | None
) -> None:
    """Write traces as one timeline for Perfetto, ranks in order and aligned.

    \b
    torch-trace convert iter-0000005/ -o all.pftrace.gz
    torch-trace convert rank-0.json.gz -o rank-0.pftrace.gz --args all

    Streams are named after what runs on them, slices that cross are all shown, and time begins at
    0. The file opens in https://ui.perfetto.dev; a .zst file needs Perfetto v58 or later.
    """
    from megatron.torch_trace.perfetto.convert import convert

    with terminal.progress_of_work("convert") as on_progress:
        result = convert(
            paths,
            output,
            args=args,
            force=force,
            strict=strict,
            jobs=jobs,
            on_progress=on_progress,
        )
    for note in result.notes:
        terminal.say(note)
    if output != "-":
        _report(result)
    if result.damage:
        parts = [f"{path}: {damage.sentence()}" for path, damage in result.damage.items()]
        raise DamagedTraceError(f"{'; '.join(parts)}.")


def _report(result: Conversion) -> None:
    console = terminal.console()
    if len(result.ranks) > 1:
        table = terminal.table("rank", "clock moved by", right=(0, 1))
        for rank, offset in result.clock_ns.items():
            table.add_row(str(rank), "unknown" if offset is None else wording.duration(offset))
        console.print(table)
    ranks = wording.counted(len(result.ranks), "rank")
    size = result.output.stat().st_size
    terminal.sentence(
        console,
        f"Wrote {terminal.literal(result.output)}: {ranks}, {result.slices:,} slices, "
        f"{result.arrows:,} arrows, {wording.size(size)}."
        f"{terminal.on_own_lanes(result.crossing)}",
    )
    terminal.sentence(
        console,
        "Open the file in https://ui.perfetto.dev, or look at the traces with "
        "`torch-trace view`, which needs no network.",
    )
