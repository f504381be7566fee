# SPDX-License-Identifier: Apache-2.0
"""`torch-trace analyze`."""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path

import click

from megatron.torch_trace.commands import options
from megatron.torch_trace.errors import DamagedTraceError


@click.command("analyze")
@options.paths
@options.as_json
@click.option(
    "--rank",
    "ranks",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="R",
    help="Only this rank; can be given several times.",
)
@click.option("--step", type=int, metavar="S", help="Only this step, by its number in the trace.")
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    metavar="N",
    help="Rows in the tables of kernels, operators and shapes; phases and modules twice as many.",
)
@click.option(
    "--model-flops",
    type=click.FloatRange(min=0, min_open=True),
    metavar="FLOPS",
    help="FLOPs of the model in one iteration over all GPUs, for MFU, where the traces lack them.",
)
@options.strict
@options.jobs
def command(
    paths: tuple[str, ...],
    as_json: bool,
    ranks: tuple[int, ...],
    step: int | None,
    top: int,
    model_flops: float | None,
    strict: bool,
    jobs: int | None,
) -> None:
    """Tell where the time of an iteration went, over all ranks, and what to do about it.

    PATH is a trace, or the folder of a window with the traces of its ranks. Ranks are analysed side
    by side; one that cannot be read is reported and the others go on.
    """
    from megatron.torch_trace.analysis.analyse import analyze
    from megatron.torch_trace.report.json_document import document
    from megatron.torch_trace.report.text import render

    with ExitStack() as stack:
        advance = {}

        def on_start(files: list[Path]) -> None:
            if not sys.stderr.isatty():
                return
            # Only a progress bar needs rich, which takes as long to import as numpy.
            from megatron.torch_trace.commands import terminal

            progress = terminal.progress_of_many("analyze", files)
            advance["by"] = stack.enter_context(progress)

        def on_done(file: Path) -> None:
            if advance and file.is_file():
                advance["by"](file.stat().st_size)

        analysis = analyze(
            paths,
            ranks=ranks or None,
            step=step,
            model_flops=model_flops,
            jobs=jobs,
            strict=strict,
            on_start=on_start,
            on_done=on_done,
        )
    if as_json:
        click.echo(json.dumps(document(analysis), allow_nan=False))
    else:
        click.echo(
            render(analysis, width=shutil.get_terminal_size((100, 24)).columns, top=top), nl=False
        )
    damaged = [rank.file for rank in analysis.ranks if rank.damage]
    skipped = [one.file for one in analysis.skipped_files]
    if damaged or skipped:
        parts = [f"damaged: {', '.join(damaged)}"] if damaged else []
        parts += [f"skipped: {', '.join(skipped)}"] if skipped else []
        raise DamagedTraceError("; ".join(parts) + ".")
