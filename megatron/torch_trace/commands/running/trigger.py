# SPDX-License-Identifier: Apache-2.0
"""`torch-trace trigger`."""

from __future__ import annotations

import time
from pathlib import Path

import click

from megatron.torch_trace.commands import options
from megatron.torch_trace.errors import TorchTraceError, UsageError
from megatron.torch_trace.files.atomic import atomic_path
from megatron.torch_trace.format import requests
from megatron.torch_trace.format.file_names import METRICS_FILE, RUN_FILE
from megatron.torch_trace.format.requests import Request
from megatron.torch_trace.inspect.run_state import answer_of, refuse_all_but_a_folder
from megatron.torch_trace.wording import counted, path_text, seconds, visible

_POLL_SECONDS = 0.2
_SILENT_SECONDS = 300.0


@click.command("trigger", epilog=options.exit_status(s3="", s4=""))
@options.argument("run", metavar="RUN")
@click.option(
    "--iterations",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Iterations to record.",
)
@click.option(
    "--ranks",
    multiple=True,
    metavar="R",
    help="Ranks to record, as --torch-profile-ranks names them (0-7, all, tp=0,dp=0); may be given "
    "several times [default: the ranks of the plan].",
)
@click.option(
    "--spans",
    type=click.Choice(requests.SPANS),
    multiple=True,
    help="Spans in this window; may be given several times [default: those of the run].",
)
@click.option("--with-stack", is_flag=True, help="Record Python stacks in this window.")
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the answer.",
)
def command(
    run: str,
    iterations: int,
    ranks: tuple[str, ...],
    spans: tuple[str, ...],
    with_stack: bool,
    wait: float,
) -> None:
    """Ask a training that runs to record a window, and print its answer.

    \b
    torch-trace trigger traces/20261128-173012
    torch-trace trigger traces/20261128-173012 --iterations 2 --ranks 0-7 --with-stack

    RUN is the folder of the run, which the training prints as its plan. The training must have been
    started with --torch-profile-trigger file. The training answers a few seconds after an iteration
    has ended. torch-trace status RUN shows the answer later, too.
    """
    folder = _requests_of(Path(run))
    name = requests.new_name()
    request = Request(iterations, ranks or None, spans or None, with_stack)
    with atomic_path(folder / (name + requests.SUFFIX), replace=False) as unfinished:
        unfinished.write_text(request.as_text())
    click.echo(f"Request {name}: {counted(iterations, 'iteration')}.")
    end = time.monotonic() + wait
    while True:
        answer = answer_of(folder, name)
        if answer is not None:
            break
        if time.monotonic() >= end:
            click.echo(
                f"No answer after {seconds(wait)}: torch-trace status {path_text(run)} shows it "
                "when there is one." + _silence(Path(run))
            )
            return
        time.sleep(_POLL_SECONDS)
    if answer.state == "refused":
        raise TorchTraceError(f"request {name} is refused: {answer.sentence}")
    click.echo(visible(f"{answer.state.capitalize()}: {answer.sentence}"))


def _requests_of(run: Path) -> Path:
    folder = run / requests.REQUESTS
    refuse_all_but_a_folder(run)
    if not (run / RUN_FILE).is_file():
        raise UsageError(f"{path_text(run)}: is not the folder of a run, which holds {RUN_FILE}.")
    if not folder.is_dir():
        raise UsageError(
            f"{path_text(run)}: this run takes no requests; start the training with "
            "--torch-profile-trigger file."
        )
    return folder


def _silence(run: Path) -> str:
    """What to think of a run that has logged nothing for long."""
    try:
        silent = time.time() - (run / METRICS_FILE).stat().st_mtime
    except OSError:
        return ""
    if silent < _SILENT_SECONDS:
        return ""
    return f" The run has logged nothing for {silent / 60:.0f} min: maybe the training has ended."
