# SPDX-License-Identifier: Apache-2.0
"""`torch-trace compare`."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from megatron.torch_trace.commands import options, terminal
from megatron.torch_trace.commands.options import output_names
from megatron.torch_trace.commands.terminal.analysis_progress import analysed, raise_if_damaged
from megatron.torch_trace.errors import TorchTraceError
from megatron.torch_trace.format.json_text import text_of
from megatron.torch_trace.wording import visible

if TYPE_CHECKING:
    pass


@click.command("compare", epilog=options.exit_status(s1="a --fail-if holds, or failure"))
@options.argument("a", metavar="A")
@options.argument("b", metavar="B")
@options.output(
    required=False,
    help="Also write an HTML page, such as compare.html.",
    refuse=output_names.PAGE,
)
@options.as_json
@click.option(
    "--fail-if",
    "conditions",
    multiple=True,
    metavar="CONDITION",
    help="Exit with status 1 if the change from A to B is: 'idle > +5%', 'iteration > +10ms', "
    "'mfu < -2pp' (in %, pp, ms, us or s); may be given several times.",
)
@options.ranks("Only these ranks of both: 3, 0-63,128 or 0-63:8.")
@options.step("Only this step of both.")
@options.top(8, help="Rows in the tables of kernels, shapes, phases and modules.")
@options.force
@options.strict
@options.jobs_of_ranks
def command(
    a: str,
    b: str,
    output: str | None,
    as_json: bool,
    conditions: tuple[str, ...],
    ranks: tuple[int, ...],
    step: int | None,
    top: int,
    force: bool,
    strict: bool,
    jobs: int | None,
) -> None:
    """Say how B differs from A: time, ranks, communication, kernels.

    \b
    torch-trace compare before/iter-0000005 after/iter-0000005 -o compare.html
    torch-trace compare rank-0.pt.trace.json.gz rank-2.pt.trace.json.gz

    A and B are traces, or folders of a window with the traces of its ranks. All numbers are
    per iteration and rank, so that windows of different lengths can be compared.
    """
    from megatron.torch_trace.analysis.compare.comparison import compare
    from megatron.torch_trace.analysis.compare.conditions import judge, parse
    from megatron.torch_trace.files.writer import OutputFile
    from megatron.torch_trace.report.comparison.document import comparison_document
    from megatron.torch_trace.report.comparison.page import render_comparison_page
    from megatron.torch_trace.report.comparison.text import render_comparison

    parsed = [parse(one) for one in conditions]
    names = _short_names(a, b)
    # The file first, because it refuses one that exists before minutes of work.
    with OutputFile(output, force=force) if output else nullcontext() as file:
        before, after = (
            analysed("compare", path, ranks=ranks, step=step, jobs=jobs, strict=strict)
            for path in (a, b)
        )
        comparison = compare(before, after)
        verdicts = [judge(one, comparison) for one in parsed]
        if file is not None:
            file.write(render_comparison_page(comparison, before, after, names).encode())
    if as_json:
        document = comparison_document(comparison, before, after, (a, b), verdicts)
        click.echo(text_of(document))
    else:
        width = shutil.get_terminal_size((100, 24)).columns
        text = render_comparison(comparison, before, after, names, width=width, top=top)
        click.echo(visible(text, lines=True), nl=False)
    failed = [one for one in verdicts if one.holds]
    for one in failed:
        terminal.say(
            f"--fail-if '{one.condition.text}' holds: {one.change:+.3g} {one.condition.unit}."
        )
    if failed:
        raise click.exceptions.Exit(TorchTraceError.exit_status)
    raise_if_damaged(before, after)


def _short_names(a: str, b: str) -> tuple[str, str]:
    """The paths without the folders that both lie in, so that they fit a line."""
    parts = [Path(path).absolute().parts for path in (a, b)]
    common = 0
    while common < min(map(len, parts)) - 1 and parts[0][common] == parts[1][common]:
        common += 1
    return str(Path(*parts[0][common:])), str(Path(*parts[1][common:]))
