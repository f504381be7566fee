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
from megatron.torch_trace.commands.terminal.run_report import run_of, run_page
from megatron.torch_trace.errors import UsageError
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

    PATH is a trace, the folder of a window with the traces of its ranks, or the folder of a run:
    its page has all windows side by side and what changed between them. The page needs no network,
    and contains run.json and metrics.jsonl of the run.
    """
    # First, because it refuses a file that exists before minutes of work.
    with OutputFile(output, force=force) as file:
        from megatron.torch_trace.report.html import render_html
        from megatron.torch_trace.report.markdown import render_markdown

        run = run_of(paths)
        if run is not None:
            _refuse_of_a_run(output, step)
            written = run_page(
                run, ranks=ranks, model_flops=model_flops, jobs=jobs, strict=strict
            ).encode()
            file.write(written)
            _say(output, written)
            return
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
    _say(output, page)
    raise_if_damaged(analysis)


def _say(output: str, page: bytes) -> None:
    if output != "-":
        terminal.say(f"Wrote {output}: {wording.size(len(page))}.")


def _refuse_of_a_run(output: str, step: int | None) -> None:
    """What is of a single window."""
    if step is not None:
        raise UsageError(f"--step {step}: is of one window; name its folder instead of the run's.")
    if output_names.ending(output) in (".md", ".markdown"):
        raise UsageError(
            f"-o {output}: the report of a run is a page (.html); Markdown is of one window."
        )
