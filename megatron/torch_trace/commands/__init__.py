# SPDX-License-Identifier: Apache-2.0
"""`torch-trace`: one subcommand is one module of this package, named after it.

A module is imported only when its subcommand runs, so that `torch-trace --help` stays fast. To add
a subcommand, write `commands/<name>.py` with a click command called `command`, and add its line to
`SUBCOMMANDS`.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

import click

from megatron.torch_trace.commands import options
from megatron.torch_trace.commands.terminal import interruption
from megatron.torch_trace.errors import TorchTraceError, UsageError
from megatron.torch_trace.system import leftovers
from megatron.torch_trace.version import __version__
from megatron.torch_trace.wording import visible

SUBCOMMANDS: dict[str, str] = {
    "analyze": "Where the time of an iteration went, and what to do about it.",
    "view": "Show report and timeline in the browser, without a network.",
    "report": "The answer of analyze as one HTML page, to read offline.",
    "compare": "How a second run, window or rank differs from the first.",
    "whatif": "What an iteration would take after a change, over all ranks.",
    "memory": "Who holds the GPU's memory, when it peaks, what grows.",
    "hang": "Why a job hangs: which rank is at fault, from flight records.",
    "status": "What a run has recorded, is writing and was asked for.",
    "trigger": "Ask a training that runs to record a window.",
    "sql": "Answer a question in SQL, from traces or from an export.",
    "export": "Write events, kernels and steps as Parquet, for SQL.",
    "mcp": "Serve the answers about one window to an agent.",
    "info": "What a trace holds, what is wrong with it, how to open it.",
    "check": "Every fault of a trace, with its count and its first byte.",
    "recover": "Complete the traces that killed processes left unfinished.",
    "decompress": "Write plain JSON; saves every whole event of a damaged file.",
    "slim": "Write a smaller trace: by step, time, category or stream.",
    "merge": "Write the traces of several ranks as one trace.",
    "convert": "Write a timeline for Perfetto: ranks in order, streams named.",
    "operators": "The table of torch's key_averages(), from a trace.",
    "stacks": "Stacks of Python functions for flame graphs, from a trace.",
}
"""Name -> the one-line help that `torch-trace --help` shows: answers first, then files."""

_ROOMS = {"trigger": "running", "status": "running", "sql": "asking", "mcp": "asking"}
"""Where a command's module lies, if not in this folder."""
_SMALL_COLUMNS = ("analyze", "compare", "report", "whatif")
"""They read a small file of columns for each rank: the threads that polars would start, one for
each core of a login node, cost more than they save."""


class _UnreadError(Exception):
    """Whoever read our output has seen enough. Of a BrokenPipeError click would make status 1."""


class _LazyGroup(click.Group):
    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _UnreadError from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBCOMMANDS:
            return None
        if cmd_name in _SMALL_COLUMNS:
            os.environ.setdefault("POLARS_MAX_THREADS", "1")
        room = _ROOMS.get(cmd_name)
        module = import_module(".".join(filter(None, (__name__, room, cmd_name))))
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in SUBCOMMANDS and not name.startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(name, SUBCOMMANDS, n=1)
            right = f"did you mean {near[0]}?" if near else f"there are {', '.join(SUBCOMMANDS)}."
            raise UsageError(f"{name}: no such command; {right}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # click's own would import every subcommand for its first line of help.
        with formatter.section("Commands"):
            formatter.write_dl(list(SUBCOMMANDS.items()))


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=options.exit_status(),
)
@click.version_option(__version__)
def cli() -> None:
    """Say where the time of an iteration went, from torch.profiler traces.

    \b
    torch-trace analyze iter-0000005/
    torch-trace view iter-0000005/rank-0.pt.trace.json.gz

    A trace may be plain JSON, gzip or zstd, under any name. A folder stands for all traces in it.
    `torch-trace COMMAND --help` shows the options of a command.
    """


def main() -> NoReturn:
    """Run `torch-trace`, then leave at once.

    Python would first free every object, which takes as long as unpacking 30 MB; the system does it
    for nothing. mypy and this package's own workers leave the same way.
    """
    interruption.end_at_once()
    status = run()
    # A thread may still be at work, of `view` for one.
    leftovers.clear()
    with suppress(OSError):
        sys.stderr.flush()
    os._exit(status)


def run() -> int:
    """Run `torch-trace`; a user's error is one sentence on stderr and its exit status."""
    # numpy would start threads for linear algebra; nothing here does any.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Where memory runs out, Rust would add a stack of its own to what this process says.
    os.environ.setdefault("RUST_BACKTRACE", "0")
    # Events are made by the thousand and have no cycles: looking for some takes a twentieth.
    gc.set_threshold(100_000)
    try:
        # Without its standalone mode click returns the status of an Exit instead of raising it.
        status = cli(prog_name="torch-trace", standalone_mode=False) or 0
        sys.stdout.flush()
    except TorchTraceError as error:
        return _failed(str(error), error.exit_status)
    except click.UsageError as error:
        if len(sys.argv) == 1:
            # Without a word click says all that there is.
            error.show()
            return error.exit_code
        from megatron.torch_trace.commands.terminal import wrong_usage

        return _failed(wrong_usage.sentence(error), error.exit_code)
    except click.ClickException as error:
        return _failed(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _failed(interruption.STOPPED, 130)
    except (BrokenPipeError, _UnreadError):
        _drop_output()
        return 0
    except OSError as error:
        _drop_output()
        return _failed(_of_the_system(error), 1)
    except MemoryError:
        return _failed("memory ran out; give the job more memory, or try -j 1.", 1)
    return int(status)


def _of_the_system(error: OSError) -> str:
    """Some file could not be read or written, or the system refused something else."""
    where = error.filename2 or error.filename or "standard output"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{where}: the disk is full; write to another one."
    if error.filename is None:
        return f"the system refuses to go on ({error.strerror or error})."
    return f"{where}: {error.strerror or error}."


def _drop_output() -> None:
    """Whatever is still to be written goes nowhere, instead of failing once more at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _failed(sentence: str, status: int) -> int:
    click.echo(f"torch-trace: {visible(sentence)}", err=True)
    return status
