# SPDX-License-Identifier: Apache-2.0
"""Listening, and the way to an end: Ctrl-C, or with `once` when the timeline has been fetched."""

from __future__ import annotations

import errno
import socket
import threading
import time
from http.server import ThreadingHTTPServer

from megatron.torch_trace.errors import TorchTraceError, UsageError
from megatron.torch_trace.viewing.handler import Handler, names_of
from megatron.torch_trace.viewing.site import Site

_QUIET_SECONDS = 5.0
"""With `once`: the UI still fetches parts of itself after the timeline."""


class Server(ThreadingHTTPServer):
    """The server of one site; listens as soon as it is made.

    Args:
        site: what it serves.
        host: address to listen on.
        port: 0 for any that is free.

    Raises:
        TorchTraceError: the port is taken.
        UsageError: no such address on this machine.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, site: Site, *, host: str, port: int) -> None:
        self.site = site
        self.listening = names_of(host)
        self._last_request = time.monotonic()
        self._timeline_fetched = threading.Event()
        self._listen(host, port)

    def _listen(self, host: str, port: int) -> None:
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            ThreadingHTTPServer.__init__(self, (host, port), Handler)
        except OSError as error:
            raise _explained(error, host, port) from error
        except OverflowError as error:
            raise UsageError(f"--port {port}: must be between 1 and 65535.") from error

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def server_bind(self) -> None:
        """Bind, without asking a name server for the machine's name as the library would."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.port

    def note_request(self) -> None:
        """Somebody asked for something."""
        self._last_request = time.monotonic()

    def note_timeline(self) -> None:
        """Somebody has the whole timeline."""
        self._timeline_fetched.set()

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing: a browser that closes a connection is no news."""

    def run(self, *, once: bool = False) -> None:
        """Serve until KeyboardInterrupt, or with `once` until the timeline has been fetched."""
        thread = threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True)
        thread.start()
        try:
            while not (once and self._is_done()):
                time.sleep(0.2)
        finally:
            self.shutdown()
            self.server_close()

    def _is_done(self) -> bool:
        quiet = time.monotonic() - self._last_request
        return self._timeline_fetched.is_set() and quiet > _QUIET_SECONDS


def _explained(error: OSError, host: str, port: int) -> TorchTraceError:
    if error.errno == errno.EADDRINUSE:
        return TorchTraceError(
            f"--port {port}: another program listens there; choose another, or leave --port out "
            "for one that is free."
        )
    if error.errno == errno.EACCES:
        return UsageError(f"--port {port}: needs a port above 1023.")
    return UsageError(f"--host {host}: this machine has no such address ({error.strerror}).")
