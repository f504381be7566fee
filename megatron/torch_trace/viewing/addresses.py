# SPDX-License-Identifier: Apache-2.0
"""What to open: here, and from the user's own computer when this is a node of a cluster."""

from __future__ import annotations

import getpass
import ipaddress
import os
import pwd  # noqa: F401
import shlex
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

# `pwd` is for getpass, which imports it when it is called: that is beside the imports of the thread
# that prepares the answers, and Ctrl-C in such an import leaves Python's import lock taken.

PUBLIC_UI = "https://ui.perfetto.dev"
TUNNEL_PORT = 8000
"""Of the user's own computer, where a tunnel to a Unix socket begins."""
PUBLIC_PORT = 9001
"""The only port of 127.0.0.1 that the public UI may fetch from."""


def url_of(host: str, port: int, path: str = "/") -> str:
    """`http://127.0.0.1:9001/`; of an address for everybody the local one."""
    shown = "127.0.0.1" if host in ("0.0.0.0", "::", "") else host
    return f"http://[{shown}]:{port}{path}" if ":" in shown else f"http://{shown}:{port}{path}"


def tunnels(
    ports: Sequence[int],
    *,
    environ: Mapping[str, str] | None = None,
    host: str | None = None,
    socket_file: Path | None = None,
) -> list[str]:
    """The lines to run on the user's own computer, the likeliest first; none if this is it.

    In a SLURM job the way to the node leads through the host that the job was submitted from. In a
    session whose client has a private address, the client is either the user's computer or a login
    node that it must jump over; which one nobody can tell from here, so both lines are given.

    Args:
        ports: what the browser needs, the server's first.
        environ: the environment, os.environ if not given.
        host: name of this machine, if not the system's.
        socket_file: where the server listens instead of its port; then there is always a line.
    """
    environ = os.environ if environ is None else environ
    user = environ.get("USER") or _user()
    node = environ.get("SLURMD_NODENAME") or host or socket.gethostname()
    submitted_from = environ.get("SLURM_SUBMIT_HOST")
    ways = [f"{port}:127.0.0.1:{port}" for port in ports]
    if socket_file is not None:
        ways[0] = f"{ports[0]}:{shlex.quote(str(socket_file.absolute()))}"
    if environ.get("SLURM_JOB_ID") and submitted_from and not _same_host(submitted_from, node):
        return [_ssh(ways, user, node, submitted_from)]
    session = environ.get("SSH_CONNECTION", "").split()
    if not session and socket_file is None:
        return []
    lines = [_ssh(ways, user, node)]
    if session and _is_private(session[0]):
        lines.append(_ssh(ways, user, node, session[0]))
    return lines


def _ssh(ways: Sequence[str], user: str, node: str, over: str | None = None) -> str:
    jump = f" -J {user}@{over}" if over else ""
    forwarded = " ".join(f"-L {way}" for way in ways)
    return f"ssh {forwarded}{jump} {user}@{node}"


def _same_host(one: str, other: str) -> bool:
    return one.split(".")[0] == other.split(".")[0]


def _is_private(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    return found.is_private and not found.is_loopback


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without an entry for its user
        return "USER"
