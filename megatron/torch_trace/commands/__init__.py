# SPDX-License-Identifier: Apache-2.0
"""`torch-trace`: one subcommand is one module of this package, named after it.

A module is imported only when its subcommand runs, so that `torch-trace --help` stays fast. To add
a subcommand, write `commands/<name>.py` with a click command called `command`, and add its line to
`SUBCOMMANDS`.
"""

from __future__ import annotations

import sys
from importlib import import_module

import click

from megatron.torch_trace.errors import TorchTraceError

SUBCOMMANDS: dict[str, str] = {}
"""Name -> the one-line help that `torch-trace --help` shows."""


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBCOMMANDS:
            return None
        module = import_module(f"{__name__}.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # click's own would import every subcommand for its first line of help.
        with formatter.section("Commands"):
            formatter.write_dl(list(SUBCOMMANDS.items()))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="megatron-torch-profile")
def cli() -> None:
    """Read, check, slim, merge and analyse torch.profiler traces."""


def main() -> None:
    """Run `torch-trace`; a user's error is one sentence on stderr and its exit status."""
    try:
        cli(prog_name="torch-trace")
    except TorchTraceError as error:
        click.echo(f"torch-trace: {error}", err=True)
        sys.exit(error.exit_status)
