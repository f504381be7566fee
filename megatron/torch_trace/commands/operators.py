# SPDX-License-Identifier: Apache-2.0
"""`torch-trace operators`."""

from __future__ import annotations

from dataclasses import asdict

import click

from megatron.torch_trace.commands import options
from megatron.torch_trace.commands.options.one_trace import refuse_all_but_one_trace
from megatron.torch_trace.errors import DamagedTraceError, UsageError
from megatron.torch_trace.format.json_text import text_of
from megatron.torch_trace.reader import available_cores

_ORDERS = ("self-gpu", "gpu", "self-cpu", "cpu", "calls")


@click.command("operators", epilog=options.exit_status())
@options.argument("path", metavar="FILE")
@click.option(
    "--sort",
    "order",
    type=click.Choice(_ORDERS),
    help="By what, the largest first [default: self-gpu where there is GPU work, else self-cpu].",
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=100,
    metavar="N",
    help="At most so many rows; 0 for all [default: 100].",
)
@options.as_json
@options.strict
@options.jobs
def command(
    path: str, order: str | None, limit: int, as_json: bool, strict: bool, jobs: int | None
) -> None:
    """Print the table of torch.profiler's key_averages(), from the trace alone.

    \b
    torch-trace operators rank-0.pt.trace.json.gz
    torch-trace operators rank-0.pt.trace.json.gz --sort self-cpu --limit 20

    One row for each name: operators, annotations, calls of CUDA and GPU work.
    """
    from megatron.torch_trace.analysis.host.call_tree import call_tree
    from megatron.torch_trace.analysis.host.key_averages import key_averages
    from megatron.torch_trace.report.operator_table import ORDERS, operator_table

    refuse_all_but_one_trace(path, "operators")
    tree = call_tree(path, strict=strict, workers=jobs or available_cores())
    rows = key_averages(tree)
    if not rows:
        raise UsageError(f"{path}: holds no operators and no GPU work.")
    if as_json:
        ordered = sorted(rows, key=ORDERS[order], reverse=True) if order else rows
        shown = [asdict(row) for row in (ordered[:limit] if limit else ordered)]
        click.echo(text_of({"schema": 1, "operators": shown}, indent=1))
    else:
        click.echo(operator_table(rows, limit=limit, order=order), nl=False)
    if tree.damage:
        raise DamagedTraceError(f"{path}: {tree.damage.sentence()}.")
