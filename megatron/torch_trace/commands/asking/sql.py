# SPDX-License-Identifier: Apache-2.0
"""`torch-trace sql`."""

from __future__ import annotations

import click

from megatron.torch_trace.commands import options, terminal
from megatron.torch_trace.errors import DamagedTraceError, UsageError
from megatron.torch_trace.wording import counted, visible

_FORMATS = ("table", "csv", "json")
_ROWS, _WIDTH = 100, 60


@click.command("sql", epilog=options.exit_status())
@options.argument("path", metavar="PATH", required=False)
@click.argument("query", metavar="QUERY", required=False)
@click.option("--list", "lists", is_flag=True, help="Name all tables and columns with their units.")
@click.option(
    "--format",
    "form",
    type=click.Choice(_FORMATS),
    default=_FORMATS[0],
    show_default=True,
    help="How the answer is printed.",
)
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    default=_ROWS,
    show_default=True,
    metavar="N",
    help="Rows to print; how many more there are is said on standard error.",
)
@click.option(
    "--width",
    type=click.IntRange(min=3),
    metavar="N",
    help="Characters of a text to print, without the middle of a longer one "
    f"[default: {_WIDTH} in a table, else all].",
)
@options.strict
@options.jobs
def command(
    path: str | None,
    query: str | None,
    lists: bool,
    form: str,
    rows: int,
    width: int | None,
    strict: bool,
    jobs: int | None,
) -> None:
    """Answer a question in SQL about kernels, collectives, steps, modules, ...

    \b
    torch-trace sql --list
    torch-trace sql iter-0000005/ 'select rank, sum(wait_ns) from collectives group by rank'
    torch-trace sql tables 'select * from steps' --format csv

    PATH is a trace, the folder of a window, or a folder that export wrote. QUERY is SELECT or WITH
    in the SQL of polars. Only the tables that it names are made, and nothing is written.
    """
    if lists:
        _list()
        return
    if path is None or query is None:
        missing = "PATH" if path is None else "QUERY"
        raise UsageError(f"sql: {missing} is missing; see torch-trace sql --help.")
    from megatron.torch_trace.query import answer, rendering

    found = answer.answer(path, query, rows=rows, strict=strict, jobs=jobs)
    if width is None and form == "table":
        width = _WIDTH
    text, cut = rendering.render(found, form, width)
    click.echo(text if form == "json" else visible(text, lines=True), nl=False)
    for note in found.notes:
        terminal.say(note)
    if found.left_out:
        terminal.say(f"{counted(found.left_out, 'more row', 'more rows')}; --rows N prints more.")
    if cut:
        terminal.say(f"{counted(cut, 'text is', 'texts are')} cut; --width N shows more of it.")
    if found.lost:
        raise DamagedTraceError(f"{'; '.join(found.lost)}.")


def _list() -> None:
    from megatron.torch_trace.query.columns import TABLES, columns

    known = columns()
    for name, meaning in TABLES.items():
        click.echo(f"{name}: {meaning}")
        mine = [one for one in known if one.table == name]
        widest = max(len(one.name) for one in mine)
        for one in mine:
            unit = f", {one.unit}" if one.unit else ""
            click.echo(f"  {one.name:<{widest}}  {one.type}{unit}")
