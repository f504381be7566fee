# SPDX-License-Identifier: Apache-2.0
"""HTTP: who may ask, which part of a file, and no file in memory."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from megatron.torch_trace.viewing.hosts import host_is_ours, origin_is_ours
from megatron.torch_trace.viewing.site import FileReply, TextReply

if TYPE_CHECKING:
    from megatron.torch_trace.viewing.server import Server
    from megatron.torch_trace.viewing.token import Token

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


class UnsatisfiableError(ValueError):
    """A range that lies behind the end of the file."""


def byte_range(header: str | None, size: int) -> tuple[int, int] | None:
    """[start, end) that a Range header asks for, None for the whole file.

    Several ranges at once, or nonsense, are answered with the whole file, as HTTP allows.

    Raises:
        UnsatisfiableError: the range lies outside of the file.
    """
    match = _RANGE.fullmatch((header or "").strip())
    if not match or match[0] == "bytes=-":
        return None
    first, last = match[1], match[2]
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < start:
            return None
    if start >= size or start >= end:
        raise UnsatisfiableError(header)
    return start, end


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version = "torch-trace"
    sys_version = ""
    timeout = 60
    # What is sent in two pieces must not wait for the first to be acknowledged.
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Answer with the body."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """Answer without it."""
        self._answer(with_body=False)

    def do_POST(self) -> None:
        """Ask for other ranks; a body would not be read, so nothing may follow it."""
        self.close_connection = True
        if not self._is_allowed():
            return
        self.server.note_request()
        reply = self.server.site.asked_for(self._path(), urlsplit(self.path).query)
        if reply is None:
            self.send_error(501, "Unsupported method ('POST')")
            return
        self._send_text(reply, with_body=True)

    def do_OPTIONS(self) -> None:
        """What a browser asks before it lets the public UI fetch from this machine."""
        if not self._is_allowed():
            return
        self.send_response(204)
        self._send_common()
        self.send_header("Access-Control-Allow-Methods", "GET, HEAD")
        self.send_header("Access-Control-Allow-Headers", "Range")
        self.send_header("Access-Control-Allow-Private-Network", "true")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the library's word)
        """Nothing: requests of one's own browser are no news."""

    def _answer(self, *, with_body: bool) -> None:
        if not self._is_allowed():
            return
        self.server.note_request()
        try:
            reply = self.server.site.find(self._path())
        except OSError:
            reply = None
        token = self.server.site.token
        if reply is not None and token is not None and self._is_opened_with(token):
            reply = self._with_cookie(token)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, TimeoutError):
            if reply is None:
                self._send_text(TextReply("Not here.\n", "text/plain", 404), with_body)
            elif isinstance(reply, TextReply):
                self._send_text(reply, with_body)
            else:
                self._send_file(reply, with_body)

    def _path(self) -> str:
        """The path that is asked for, decoded once; "" if it is no text."""
        try:
            return unquote(urlsplit(self.path).path, errors="strict")
        except ValueError:
            return ""

    def _is_allowed(self) -> bool:
        host, origin = self.headers.get("Host"), self.headers.get("Origin")
        if not host_is_ours(host, self.server.listening):
            reason = "This server answers to localhost and 127.0.0.1 only."
        elif not (origin_is_ours(origin, host) or self.server.site.shares(self._path(), origin)):
            reason = "Pages of other servers get nothing here."
        elif self._is_embedded_elsewhere():
            reason = "Pages of other servers cannot embed anything from here."
        elif not self._has_token():
            reason = "Open the address with the token that `torch-trace view` has printed."
        else:
            return True
        self.close_connection = True
        self._send_text(TextReply(f"{reason}\n", "text/plain", 403), with_body=True)
        return False

    def _has_token(self) -> bool:
        token, headers = self.server.site.token, self.headers
        return (
            token is None
            or token.is_in_cookie(headers.get("Cookie"), headers.get("Host"))
            or token.is_in(self.path)
            or token.is_in(self.path, self._path())
        )

    def _is_opened_with(self, token: Token) -> bool:
        """By a browser that was given the printed address; other programs keep no cookies."""
        return token.is_in(self.path) and "text/html" in self.headers.get("Accept", "")

    def _with_cookie(self, token: Token) -> TextReply:
        """To the same page by an address that everybody may see."""
        there = {
            "Location": urlsplit(self.path).path,
            "Set-Cookie": token.cookie(self.headers.get("Host")),
        }
        return TextReply("", "text/plain", 303, there)

    def _is_embedded_elsewhere(self) -> bool:
        """A foreign page's <img> or <script>, which sends no Origin."""
        return (
            self.headers.get("Sec-Fetch-Site") == "cross-site"
            and self.headers.get("Sec-Fetch-Mode") == "no-cors"
        )

    def _send_common(self) -> None:
        origin = self.headers.get("Origin")
        if self.server.site.shares(self._path(), origin):
            self.send_header("Access-Control-Allow-Origin", str(origin))
            self.send_header("Vary", "Origin")
        else:
            self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Content-Security-Policy", self.server.site.policy)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-cache")

    def _send_text(self, reply: TextReply, with_body: bool) -> None:
        body = reply.body.encode()
        self.send_response(reply.status)
        self._send_common()
        self.send_header("Content-Type", reply.kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def _send_file(self, reply: FileReply, with_body: bool) -> None:
        try:
            file = reply.file.open()
        except OSError:
            self._send_text(TextReply("Not here any more.\n", "text/plain", 404), with_body)
            return
        with file:
            status = os.fstat(file.fileno())
            tag = f'"{status.st_size:x}-{status.st_mtime_ns:x}"'
            if self.headers.get("If-None-Match") == tag:
                self._send_head(304, reply, tag)
                self.end_headers()
                return
            part = self._part(tag, status.st_size)
            if part is None:
                self._send_head(416, reply, tag)
                self.send_header("Content-Range", f"bytes */{status.st_size}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            start, end, code = part
            self._send_head(code, reply, tag)
            if code == 206:
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{status.st_size}")
            self.send_header("Content-Length", str(end - start))
            self.end_headers()
            if with_body and end > start:
                self.wfile.flush()
                self.connection.sendfile(file, start, end - start)
                if reply.is_timeline and end == status.st_size:
                    self.server.note_timeline()

    def _part(self, tag: str, size: int) -> tuple[int, int, int] | None:
        """(start, end, status); None if the range cannot be had."""
        wanted = self.headers.get("Range")
        condition = self.headers.get("If-Range")
        if wanted is None or (condition is not None and condition != tag):
            return 0, size, 200
        try:
            part = byte_range(wanted, size)
        except UnsatisfiableError:
            return None
        return (0, size, 200) if part is None else (*part, 206)

    def _send_head(self, code: int, reply: FileReply, tag: str) -> None:
        self.send_response(code)
        self._send_common()
        self.send_header("Content-Type", reply.kind)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", tag)
        if reply.download is not None:
            name = re.sub(r"[^\w.+-]", "_", reply.download, flags=re.ASCII)
            self.send_header("Content-Disposition", f'attachment; filename="{name}"')


def names_of(host: str) -> Collection[str]:
    """Host names that a server answers to that was asked to listen on `host`."""
    import socket

    if host in ("127.0.0.1", "localhost", "::1"):
        return frozenset()
    names = {host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}
    return frozenset(names)
