# SPDX-License-Identifier: Apache-2.0
"""`torch-trace export`."""

from __future__ import annotations

import click

from megatron.torch_trace import wording
from megatron.torch_trace.commands import options, terminal
from megatron.torch_trace.errors import DamagedTraceError


@click.command("export", epilog=options.exit_status())
@options.paths
@options.output(required=True, help="Folder to write; it must be empty or not exist.")
@click.option(
    "--force",
    is_flag=True,
    help="Replace the tables in a folder that is not empty; other files stay.",
)
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="NAME",
    help="Only this table; may be given several times [default: all nine].",
)
@options.strict
@options.jobs
def command(
    paths: tuple[str, ...],
    output: str,
    force: bool,
    tables: tuple[str, ...],
    strict: bool,
    jobs: int | None,
) -> None:
    """Write kernels, collectives, steps, modules, ... as Parquet tables.

    \b
    torch-trace export iter-0000005/ -o tables
    duckdb -c "SELECT * FROM 'tables/steps.parquet'"

    The tables are for DuckDB, polars or pandas; docs/export.md describes every column.
    """
    from megatron.torch_trace.parquet.export import export
    from megatron.torch_trace.parquet.schemas import SCHEMAS

    wanted = tables or tuple(SCHEMAS)
    result = export(paths, output, force=force, strict=strict, jobs=jobs, tables=wanted)
    for note in result.notes:
        terminal.say(note)
    console = terminal.console()
    table = terminal.table("table", "rows", "size", right=(1, 2))
    for name, rows in result.rows.items():
        file = result.folder / f"{name}.parquet"
        table.add_row(file.name, f"{rows:,}", wording.size(file.stat().st_size))
    console.print(table)
    if result.damage:
        parts = [f"{path}: {damage.sentence()}" for path, damage in result.damage.items()]
        raise DamagedTraceError(f"{'; '.join(parts)}.")
