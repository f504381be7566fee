# SPDX-License-Identifier: Apache-2.0
"""`torch-trace analyze`."""

from __future__ import annotations

import shutil

import click

from megatron.torch_trace.commands import options
from megatron.torch_trace.commands.terminal import say
from megatron.torch_trace.commands.terminal.analysis_progress import (
    Progress,
    analysed_with_memory,
    raise_if_damaged,
)
from megatron.torch_trace.commands.terminal.kept_analysis import keep
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.wording import visible


@click.command("analyze", epilog=options.exit_status())
@options.paths
@options.as_json
@click.option(
    "--no-tables",
    "without_tables",
    is_flag=True,
    help="With --json: without the tables of each rank, of kernels, operators, shapes, modules, "
    "micro-batches and paths. Of thousands of ranks these are nine tenths of the JSON.",
)
@options.ranks()
@options.step()
@options.top(
    5,
    help="Rows in the tables of kernels, operators and shapes; the tables of phases and modules "
    "have twice as many.",
)
@options.model_flops
@click.option(
    "--partials/--no-partials",
    "partials",
    default=None,
    help="--partials keeps the analysis of each rank beside its trace, in artifacts/; "
    "--no-partials uses no kept analysis [default: use kept analyses, keep none].",
)
@click.option(
    "--shard",
    metavar="I/N",
    help="With --partials: only the I-th of N shares of the traces, counted from 1. Under `srun "
    "-n N` each task takes its own share without this option.",
)
@click.option(
    "--gains/--no-gains",
    "gains",
    default=None,
    help="--gains finds out how much shorter the iteration would be without each finding; "
    "--no-gains does not [default: --gains if at most 16 traces with together at most 512 MB "
    "uncompressed have to be read].",
)
@options.strict
@options.jobs_of_ranks
def command(
    paths: tuple[str, ...],
    as_json: bool,
    without_tables: bool,
    ranks: tuple[int, ...],
    step: int | None,
    top: int,
    model_flops: float | None,
    partials: bool | None,
    shard: str | None,
    gains: bool | None,
    strict: bool,
    jobs: int | None,
) -> None:
    """Say where the time of an iteration went, and what to do about it.

    \b
    torch-trace analyze iter-0000005/
    torch-trace analyze rank-0.pt.trace.json.gz --step 5
    srun torch-trace analyze RUN --partials

    PATH is a trace, or the folder of a window with the traces of its ranks. A rank that cannot be
    read is reported, and the other ranks are analysed.
    """
    if without_tables and not as_json:
        raise UsageError("--no-tables: needs --json.")
    if shard and not partials:
        raise UsageError(f"--shard {shard}: needs --partials.")
    if partials and step is not None:
        raise UsageError(
            f"--step {step}: --partials keeps whole windows; leave one of the two out."
        )
    if partials:
        with Progress("analyze") as progress:
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
    analysis, _ = analysed_with_memory(
        "analyze",
        paths,
        needs=f"megatron.torch_trace.report.{'json_document' if as_json else 'text'}",
        ranks=ranks,
        step=step,
        model_flops=model_flops,
        jobs=jobs,
        strict=strict,
        use_partials=partials is not False,
        gains=gains,
    )
    if as_json:
        from megatron.torch_trace.analysis.results.shown_ranks import MOST
        from megatron.torch_trace.report.json_document import pieces

        if len(analysis.ranks) > MOST and not without_tables:
            say(
                f"torch-trace: the JSON has the tables of {len(analysis.ranks):,} ranks; "
                "--no-tables leaves them out."
            )
        for piece in pieces(analysis, tables=not without_tables):
            click.echo(piece, nl=False)
        click.echo()
    else:
        from megatron.torch_trace.report.text import render

        text = render(analysis, width=shutil.get_terminal_size((100, 24)).columns, top=top)
        click.echo(visible(text, lines=True), nl=False)
    raise_if_damaged(analysis)
