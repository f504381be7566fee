# SPDX-License-Identifier: Apache-2.0
"""`torch-trace mcp`."""

from __future__ import annotations

from pathlib import Path

import click

from megatron.torch_trace.commands import options


@click.command("mcp", epilog=options.exit_status(s3="", s4=""))
@options.argument("path", metavar="PATH")
@options.argument("other", metavar="[OTHER]", required=False)
def command(path: str, other: str | None) -> None:
    """Serve the answers about one window to an agent, as tools of the Model Context Protocol.

    \b
    torch-trace mcp iter-0000005/
    torch-trace mcp iter-0000005/ ../later/iter-0000005/

    PATH is a trace, or the folder of a window; OTHER is one to compare it with. The agent starts
    this command and speaks to it over standard input and output. It can read nothing else, and
    nothing is written. Needs pip install 'mcp>=2'.
    """
    from megatron.torch_trace.agent.server import serve
    from megatron.torch_trace.query.answer import own_folder

    with own_folder() as folder:
        serve(Path(path), Path(other) if other else None, folder)
