# SPDX-License-Identifier: Apache-2.0
"""`torch-trace analyze`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import click

from megatron.torch_trace.commands import options, terminal
from megatron.torch_trace.commands.keeping import keep
from megatron.torch_trace.errors import DamagedTraceError, UsageError


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
@click.option(
    "--partials/--no-partials",
    "partials",
    default=None,
    help="Keep the analysis of each rank beside its trace, in artifacts/, or do not use what was "
    "kept [default: use it, keep nothing].",
)
@click.option(
    "--shard",
    metavar="I/N",
    help="With --partials: only the I-th of N shares of the traces, counted from 1; the tasks of "
    "`srun -n N` share them by themselves.",
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
    partials: bool | None,
    shard: str | None,
    strict: bool,
    jobs: int | None,
) -> None:
    """Tell where the time of an iteration went, over all ranks, and what to do about it.

    PATH is a trace, or the folder of a window with the traces of its ranks. Ranks are analysed side
    by side; one that cannot be read is reported and the others go on.
    """
    from megatron.torch_trace.analysis.analyse import analyze
    from megatron.torch_trace.analysis.choosing import listed
    from megatron.torch_trace.report.json_document import pieces
    from megatron.torch_trace.report.text import render

    if shard and not partials:
        raise UsageError(f"--shard {shard}: only with --partials, which shares keep.")
    if partials and step is not None:
        raise UsageError(f"--step {step}: --partials keeps whole windows; leave one of them out.")
    if partials:
        with _Progress() as progress:
            instead = keep(
                paths,
                shard=shard,
                ranks=ranks,
                jobs=jobs,
                strict=strict,
                as_json=as_json,
                on_start=progress.start,
                on_done=progress.done,
            )
        if instead:
            click.echo(instead)
            return
    with _Progress() as progress:
        analysis = analyze(
            paths,
            ranks=ranks or None,
            step=step,
            model_flops=model_flops,
            jobs=jobs,
            strict=strict,
            use_partials=partials is not False,
            on_start=progress.start,
            on_done=progress.done,
        )
    if as_json:
        for piece in pieces(analysis):
            click.echo(piece, nl=False)
        click.echo()
    else:
        click.echo(
            render(analysis, width=shutil.get_terminal_size((100, 24)).columns, top=top), nl=False
        )
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
            self._advance = self.enter_context(terminal.progress_of_many("analyze", files))

    def done(self, file: Path) -> None:
        if self._advance and file.is_file():
            self._advance(file.stat().st_size)
