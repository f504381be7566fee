# SPDX-License-Identifier: Apache-2.0
"""The server on a Unix socket: the system lets its user in and nobody else, root aside."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from http.server import ThreadingHTTPServer
from pathlib import Path

from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.viewing.handler import Handler
from megatron.torch_trace.viewing.server import Server
from megatron.torch_trace.viewing.site import Site


class _SocketHandler(Handler):
    disable_nagle_algorithm = False  # that is of TCP


class SocketServer(Server):
    """The server of one site; listens as soon as it is made, and removes the socket at its end.

    Args:
        site: what it serves.
        file: the socket; one that a killed server has left is replaced.
        port: of the user's own computer, from which a tunnel leads here.

    Raises:
        UsageError: something else has that name, or no socket can be made there.
    """

    address_family = socket.AF_UNIX

    def __init__(self, site: Site, file: Path, *, port: int) -> None:
        self.file = file
        super().__init__(site, host="localhost", port=port)

    def _listen(self, host: str, port: int) -> None:
        self._port = port
        _remove_what_was_left(self.file)
        # Rights are checked by connect(), so the socket has them before it listens.
        before = os.umask(0o177)
        try:
            ThreadingHTTPServer.__init__(self, str(self.file), _SocketHandler)  # type: ignore[arg-type]
        except OSError as error:
            reason = "longer than the 100 or so bytes that a socket's path may have"
            said = error.strerror or reason
            raise UsageError(f"--socket {self.file}: cannot be made ({said}).") from error
        finally:
            os.umask(before)

    @property
    def port(self) -> int:
        return self._port

    def server_bind(self) -> None:
        """Bind to the file."""
        self.socket.bind(str(self.file))
        self._made = self.file.lstat().st_ino
        self.server_name, self.server_port = "localhost", self._port

    def server_close(self) -> None:
        """Close, and remove the file if it is still ours."""
        super().server_close()
        with suppress(OSError):
            if self.file.lstat().st_ino == self._made:
                self.file.unlink()


def _remove_what_was_left(file: Path) -> None:
    try:
        status = file.lstat()
    except OSError:
        return
    if stat.S_ISSOCK(status.st_mode):
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(file))
            except ConnectionRefusedError:
                file.unlink()
                return
            except OSError:
                pass
        raise UsageError(f"--socket {file}: another program listens there; name another file.")
    raise UsageError(f"--socket {file}: exists already; name a file that does not.")
