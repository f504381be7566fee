# SPDX-License-Identifier: Apache-2.0
"""`torch-trace report`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import click

from megatron.torch_trace.commands import options, terminal
from megatron.torch_trace.errors import DamagedTraceError
from megatron.torch_trace.writer import OutputFile


@click.command("report")
@options.paths
@click.option(
    "-o",
    "--output",
    default="report.html",
    show_default=True,
    metavar="OUT",
    help="The page to write; - for stdout.",
)
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
    "--model-flops",
    type=click.FloatRange(min=0, min_open=True),
    metavar="FLOPS",
    help="FLOPs of the model in one iteration over all GPUs, for MFU, where the traces lack them.",
)
@options.force
@options.strict
@options.jobs
def command(
    paths: tuple[str, ...],
    output: str,
    ranks: tuple[int, ...],
    step: int | None,
    model_flops: float | None,
    force: bool,
    strict: bool,
    jobs: int | None,
) -> None:
    """Write what analyze finds as one HTML page, to be read offline and passed on.

    \b
    torch-trace report iter-0000005/
    torch-trace report iter-0000005/ -o step6.html --step 6

    PATH is a trace, or the folder of a window with the traces of its ranks. The page loads nothing
    from anywhere; run.json and metrics.jsonl beside the window's folder are part of it.
    """
    # First, because it refuses a file that exists before minutes of work.
    with OutputFile(output, force=force) as file:
        from megatron.torch_trace.analysis.analyse import analyze
        from megatron.torch_trace.analysis.choosing import listed
        from megatron.torch_trace.report.html import render_html

        with _Progress() as progress:
            analysis = analyze(
                paths,
                ranks=ranks or None,
                step=step,
                model_flops=model_flops,
                jobs=jobs,
                strict=strict,
                on_start=progress.start,
                on_done=progress.done,
            )
        page = render_html(analysis).encode()
        file.write(page)
    if output != "-":
        terminal.say(f"Wrote {output}: {terminal.size(len(page))}.")
    damaged = [rank.file for rank in analysis.ranks if rank.damage]
    skipped = [one.file for one in analysis.skipped_files]
    if damaged or skipped:
        parts = [f"damaged: {listed(damaged)}"] if damaged else []
        parts += [f"skipped: {listed(skipped)}"] if skipped else []
        raise DamagedTraceError("; ".join(parts) + ".")


class _Progress(ExitStack):
    """A bar over the files that are read, if any; on a terminal only."""

    _advance: Callable[[int], None] | None = None

    def start(self, files: list[Path]) -> None:
        if files:
            self._advance = self.enter_context(terminal.progress_of_many("report", files))

    def done(self, file: Path) -> None:
        if self._advance and file.is_file():
            self._advance(file.stat().st_size)
