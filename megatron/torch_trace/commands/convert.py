# SPDX-License-Identifier: Apache-2.0
"""`torch-trace convert`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from megatron.torch_trace import wording
from megatron.torch_trace.commands import options, terminal
from megatron.torch_trace.errors import DamagedTraceError, UsageError

if TYPE_CHECKING:
    from megatron.torch_trace.perfetto.convert import Conversion


@click.command("convert")
@options.paths
@options.output(
    required=True, help="File to write: .pftrace, .pftrace.gz or .pftrace.zst; - for stdout."
)
@click.option(
    "--args",
    type=click.Choice(("some", "all", "none")),
    default="some",
    show_default=True,
    help="Arguments of events to keep: those one looks for, all of them, or none.",
)
@options.force
@options.strict
@options.jobs
def command(
    paths: tuple[str, ...], output: str, args: str, force: bool, strict: bool, jobs: int | None
) -> None:
    """Write traces as one Perfetto timeline, ranks in order and aligned.

    \b
    torch-trace convert iter-0000005/ -o all.pftrace.gz
    torch-trace convert rank-0.json.gz -o rank-0.pftrace.gz --args all

    Streams are named after what runs on them, nothing is lost where slices cross, and the ruler
    begins at 0. The file opens in https://ui.perfetto.dev; .zst needs its version 58 or later.
    """
    if ".json" in Path(output).suffixes[-2:]:
        raise UsageError(
            f"--output {output}: a timeline is no JSON; name it .pftrace.gz, or write JSON with "
            "`torch-trace merge`."
        )
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
        f"{result.arrows:,} arrows, {wording.size(size)}. {result.crossing:,} slices that "
        "crossed others are on lanes of their own.",
    )
    terminal.sentence(
        console,
        "Open it in https://ui.perfetto.dev, or see the traces with "
        "`torch-trace view`, which needs no network.",
    )
