# SPDX-License-Identifier: Apache-2.0
"""A server in a thread, and a client that sends exactly what a test says."""

from __future__ import annotations

import threading
from http.client import HTTPConnection, HTTPResponse

from megatron.torch_trace.viewing.server import Server
from megatron.torch_trace.viewing.site import Site

TIMELINE = bytes(range(256)) * 4


class Running:
    """A server in a thread, and a client that sends exactly what a test says."""

    def __init__(self, site: Site, host: str = "127.0.0.1") -> None:
        self.server = Server(site, host=host, port=0)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def ask(self, path: str, headers: dict[str, str] | None = None, method: str = "GET"):
        connection = HTTPConnection("127.0.0.1", self.server.port, timeout=300)
        given = {"Host": f"127.0.0.1:{self.server.port}", **(headers or {})}
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in given.items():
            connection.putheader(name, value)
        connection.endheaders()
        reply: HTTPResponse = connection.getresponse()
        body = reply.read()
        connection.close()
        return reply, body

    def status(self, path: str, headers: dict[str, str] | None = None) -> int:
        return int(self.ask(path, headers)[0].status)

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
