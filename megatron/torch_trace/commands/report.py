# SPDX-License-Identifier: Apache-2.0
"""`torch-trace report`."""

from __future__ import annotations

import click

from megatron.torch_trace import wording
from megatron.torch_trace.commands import options, terminal
from megatron.torch_trace.commands.options import output_names
from megatron.torch_trace.commands.terminal.analysis_progress import (
    analysed_with_memory,
    raise_if_damaged,
)
from megatron.torch_trace.files.writer import OutputFile


@click.command("report", epilog=options.exit_status())
@options.paths
@options.output(
    required=False,
    help="File to write: HTML, or Markdown if its name ends in .md; - for stdout.",
    refuse=output_names.REPORT,
    default="report.html",
    show_default=True,
)
@options.ranks()
@options.step()
@options.model_flops
@options.force
@options.strict
@options.jobs_of_ranks
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
    """Write the answer of analyze as one HTML page, to read offline.

    \b
    torch-trace report iter-0000005/
    torch-trace report iter-0000005/ -o step6.html --step 6
    torch-trace report iter-0000005/ -o report.md

    PATH is a trace, or the folder of a window with the traces of its ranks. The page needs no
    network, and contains run.json and metrics.jsonl of the run.
    """
    # First, because it refuses a file that exists before minutes of work.
    with OutputFile(output, force=force) as file:
        from megatron.torch_trace.report.html import render_html
        from megatron.torch_trace.report.markdown import render_markdown

        analysis, memory = analysed_with_memory(
            "report",
            paths,
            ranks=ranks,
            step=step,
            model_flops=model_flops,
            jobs=jobs,
            strict=strict,
            gains=None,
        )
        render = (
            render_markdown if output_names.ending(output) in (".md", ".markdown") else render_html
        )
        page = render(analysis, memory=memory).encode()
        file.write(page)
    if output != "-":
        terminal.say(f"Wrote {output}: {wording.size(len(page))}.")
    raise_if_damaged(analysis)
