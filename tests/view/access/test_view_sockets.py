# SPDX-License-Identifier: Apache-2.0
"""`view` on a socket: a file of its user, which nobody else can open."""

from __future__ import annotations

import socket
import stat
from http.client import HTTPConnection
from pathlib import Path

import pytest
from guarded_server import NOBODY, TIMELINE, a_site, as_a_second_user, as_root, running

from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.viewing.addresses import tunnels
from megatron.torch_trace.viewing.preparation import Preparation
from megatron.torch_trace.viewing.socket_server import SocketServer
from megatron.torch_trace.viewing.token import Token


@as_root
def test_a_second_user_cannot_even_open_the_socket(
    preparation: Preparation, tmp_path: Path
) -> None:
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if folder != Path("/tmp"):
            folder.chmod(0o755)
    file = tmp_path / "view.sock"
    for _ in running(SocketServer(a_site(preparation, None), file, port=8000)):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        program = """
client = socket.socket(socket.AF_UNIX)
try:
    client.connect(sys.argv[1])
except OSError as error:
    print(os.getuid(), type(error).__name__)
"""
        assert as_a_second_user(program, str(file)) == f"{NOBODY} PermissionError\n"


def test_through_a_socket_its_user_gets_everything(
    preparation: Preparation, token: Token, tmp_path: Path
) -> None:
    file = tmp_path / "view.sock"
    for _ in running(SocketServer(a_site(preparation, token), file, port=8000)):
        client = HTTPConnection("localhost:8000", timeout=300)
        client.sock = socket.socket(socket.AF_UNIX)
        client.sock.connect(str(file))
        client.request("GET", f"/timeline.pftrace.gz{token.query()}")
        assert client.getresponse().read() == TIMELINE
        client.request("GET", "/timeline.pftrace.gz")
        assert client.getresponse().status == 403
        client.close()
    assert not file.exists()


def test_a_socket_that_a_killed_server_left_is_replaced_and_nothing_else_is(
    preparation: Preparation, tmp_path: Path
) -> None:
    site, file = a_site(preparation, None), tmp_path / "view.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(file))
    left.close()
    for _ in running(SocketServer(site, file, port=8000)):
        with pytest.raises(UsageError, match="another program listens there; name another file"):
            SocketServer(site, file, port=8000)
    notes = tmp_path / "notes"
    notes.write_text("mine")
    with pytest.raises(UsageError, match="exists already; name a file that does not"):
        SocketServer(site, notes, port=8000)
    assert notes.read_text() == "mine"


@pytest.mark.parametrize(
    ("file", "reason"),
    [("nowhere/view.sock", "No such file or directory"), ("x" * 120, "longer than the 100 or so")],
)
def test_a_socket_that_cannot_be_made_is_one_sentence(
    preparation: Preparation, tmp_path: Path, file: str, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        SocketServer(a_site(preparation, None), tmp_path / file, port=8000)


def test_a_tunnel_to_a_socket_begins_at_a_port_of_ones_own_computer(tmp_path: Path) -> None:
    file = tmp_path / "my view.sock"
    lines = tunnels([8000], environ={"USER": "ada"}, host="node042", socket_file=file)
    assert lines == [f"ssh -L 8000:'{file}' ada@node042"]
