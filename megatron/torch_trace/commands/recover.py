# SPDX-License-Identifier: Apache-2.0
"""`torch-trace recover`."""

from __future__ import annotations

import time
from pathlib import Path

import click

from megatron.torch_trace.commands import options, terminal
from megatron.torch_trace.errors import DamagedTraceError
from megatron.torch_trace.rewrite.recovery import (
    Unfinished,
    find_unfinished,
    recover,
    remove_if_empty,
)


@click.command("recover", epilog=options.exit_status(s3="something was lost", s4=""))
@options.argument("folders", nargs=-1, required=True, metavar="NODE_DIR...")
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    shell_complete=options.files,
    help="Folder of runs for the traces whose own folder of runs cannot be reached.",
)
@click.option("-n", "--dry-run", is_flag=True, help="Only say what would be done.")
def command(folders: tuple[str, ...], output: str | None, dry_run: bool) -> None:
    """Complete the traces that killed processes left unfinished.

    \b
    torch-trace recover /scratch/traces
    srun -N $NODES torch-trace recover "$SCRATCH"

    NODE_DIR is the folder of --torch-profile-scratch-dir, on the node itself, or a run, or a folder
    of runs. A whole trace is compressed and put where it belongs. Of a damaged trace, the whole
    events are saved as a cut-short trace (.partial), and the damaged file stays. Nothing is
    overwritten. A file that a process still writes to is left as it is. An empty scratch folder is
    removed.
    """
    target = Path(output).absolute() if output else None
    found = [trace for name in folders for trace in find_unfinished(Path(name), target)]
    if not found:
        terminal.say(f"{', '.join(folders)}: no trace is unfinished.")
    damaged = [str(trace.source) for trace in found if not _complete(trace, dry_run)]
    if not dry_run:
        for name in folders:
            remove_if_empty(Path(name))
    if damaged:
        raise DamagedTraceError(f"some events are lost, see above: {', '.join(damaged)}.")


def _complete(trace: Unfinished, dry_run: bool) -> bool:
    """Do it and say it; False where something was lost."""
    if trace.arrived:
        terminal.say(f"{trace.source}: left as it is: {trace.arrived} exists.")
        return True
    if trace.is_alive(time.time()):
        terminal.say(f"{trace.source}: left as it is: a process still writes to this file.")
        return True
    if dry_run:
        terminal.say(f"{trace.source}: would be saved as {trace.target}.")
        return True
    with terminal.progress(trace.source.name, trace.source) as on_read:
        result = recover(trace, on_read)
    if result.lost is None:
        terminal.say(f"{trace.source}: saved as {result.target}.")
        return True
    terminal.say(f"{trace.source}: its whole events are saved as {result.target}. {result.lost}.")
    return False
