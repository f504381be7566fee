# SPDX-License-Identifier: Apache-2.0
"""`torch-trace recover`."""

from __future__ import annotations

import time
from pathlib import Path

import click

from megatron.torch_trace.commands import terminal
from megatron.torch_trace.errors import DamagedTraceError
from megatron.torch_trace.rewrite.recovery import (
    Unfinished,
    find_unfinished,
    recover,
    remove_if_empty,
)


@click.command("recover")
@click.argument("folders", nargs=-1, required=True, metavar="NODE_DIR...")
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    help="Folder of runs to put traces in, where the one they were meant for is not to be had.",
)
@click.option("-n", "--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
def command(folders: tuple[str, ...], output: str | None, dry_run: bool) -> None:
    """Complete the traces that killed processes left unfinished.

    NODE_DIR is what --torch-profile-scratch-dir was, on the node itself, or a run or a folder of
    runs. Text that is whole is compressed and put where its trace belongs; text that was cut is
    saved up to there, as a .partial trace. Nothing is overwritten, and nothing that was damaged is
    removed. What somebody still writes to is left alone. A scratch folder in which nothing is left
    is removed. Exit status 3 says that something was lost.
    """
    target = Path(output).absolute() if output else None
    found = [trace for name in folders for trace in find_unfinished(Path(name), target)]
    if not found:
        terminal.say(f"{', '.join(folders)}: nothing is unfinished.")
    damaged = [str(trace.source) for trace in found if not _complete(trace, dry_run)]
    if not dry_run:
        for name in folders:
            remove_if_empty(Path(name))
    if damaged:
        raise DamagedTraceError(f"not all could be saved, see above: {', '.join(damaged)}.")


def _complete(trace: Unfinished, dry_run: bool) -> bool:
    """Do it and say it; False where something was lost."""
    if trace.arrived:
        terminal.say(f"{trace.source}: left as it is, {trace.arrived} is there.")
        return True
    if trace.is_alive(time.time()):
        terminal.say(f"{trace.source}: left as it is, somebody still writes to it.")
        return True
    if dry_run:
        terminal.say(f"{trace.source}: would become {trace.target}.")
        return True
    with terminal.progress(trace.source.name, trace.source) as on_read:
        result = recover(trace, on_read)
    if result.lost is None:
        terminal.say(f"{trace.source}: now {result.target}.")
        return True
    terminal.say(f"{trace.source}: what it holds is now {result.target}. {result.lost}.")
    return False
