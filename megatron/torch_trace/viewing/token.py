# SPDX-License-Identifier: Apache-2.0
"""The secret in the printed address, without which the server tells nothing.

Every user of a node reaches its loopback ports, so an address alone is no protection. Who opens the
address with the token gets a cookie and is sent to the address without it, which then may stay in
the browser's history and in a screenshot.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from urllib.parse import parse_qs, urlsplit

_BYTES = 24
_NAME = "token"


class Token:
    """One secret, made anew for each server."""

    def __init__(self) -> None:
        self._secret = secrets.token_urlsafe(_BYTES)

    def query(self, path: str | None = None) -> str:
        """What is put after an address.

        Args:
            path: the only path that the query shall open, for a page that gets no more than that.
        """
        return f"?{_NAME}={self._secret if path is None else self._of(path)}"

    def is_in(self, target: str, path: str | None = None) -> bool:
        """Whether a request carries what `query` puts after an address.

        Args:
            target: path and query as they were sent.
            path: as for `query`.
        """
        try:
            given = parse_qs(urlsplit(target).query).get(_NAME, [""])[0]
        except ValueError:
            return False
        return self._is(given, self._secret if path is None else self._of(path))

    def is_in_cookie(self, header: str | None, host: str | None) -> bool:
        """Whether a Cookie header carries the token."""
        name = _cookie_name(host)
        cookies = (part.strip().partition("=") for part in (header or "").split(";"))
        return any(key == name and self._is(value, self._secret) for key, _, value in cookies)

    def cookie(self, host: str | None) -> str:
        """The Set-Cookie header; a foreign page can neither read the cookie nor have it sent."""
        return f"{_cookie_name(host)}={self._secret}; Path=/; HttpOnly; SameSite=Lax"

    def _of(self, path: str) -> str:
        return hmac.new(self._secret.encode(), path.encode(), hashlib.sha256).hexdigest()

    @staticmethod
    def _is(given: str, wanted: str) -> bool:
        return hmac.compare_digest(given.encode(), wanted.encode())


def _cookie_name(host: str | None) -> str:
    """Browsers do not tell ports apart, so the name does: it is the port that the browser used."""
    port = (host or "").rpartition(":")[2]
    return f"torch-trace-{port if port.isdecimal() else 80}"
