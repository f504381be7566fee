# SPDX-License-Identifier: Apache-2.0
"""A server with a token, and who asks it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest

from megatron.torch_trace.viewing.preparation import Preparation
from megatron.torch_trace.viewing.server import Server
from megatron.torch_trace.viewing.site import Site
from megatron.torch_trace.viewing.token import Token

SECRET, TRACE, TIMELINE = b"-----BEGIN PRIVATE KEY-----\n", b'{"traceEvents": []}', b"timeline"
PATHS = ("/", "/timeline", "/timeline.pftrace.gz", "/offsets", "/traces/", "/ui/", "/nothing")
REFUSED = b"Open the address with the token that `torch-trace view` has printed.\n"
NOBODY = 65534
as_root = pytest.mark.skipif(
    os.getuid() != 0, reason="only root can become a second user to look with"
)


def a_site(preparation: Preparation, token: Token | None) -> Site:
    index = preparation.traces[0].parent.parent / "index.html"
    index.write_text("<p>Perfetto</p>")
    return Site(preparation, {"index.html": index}, token=token)


def running(server: Server) -> Iterator[Server]:
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def ask(
    server: Server, path: str, headers: dict[str, str] | None = None, method: str = "GET"
) -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=300)
    connection.request(method, path, headers=headers or {})
    reply = connection.getresponse()
    body = reply.read()
    connection.close()
    return reply, body


def replaced_by_a_link(trace: Path, secret: Path) -> None:
    trace.unlink()
    trace.symlink_to(secret)


def as_a_second_user(program: str, *arguments: str) -> str:
    """What a program prints that another user of this machine runs."""
    # Imported before, since the other user may not be able to read the Python of this one.
    first = (
        "import encodings.idna, http.client, os, socket, sys\n"
        f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
    )
    command = [sys.executable, "-c", first + program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    return done.stdout


ASK = """
for path in sys.argv[2:]:
    client = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=300)
    client.request("GET", path)
    reply = client.getresponse()
    print(os.getuid(), reply.status, reply.read().decode(), end="")
"""
