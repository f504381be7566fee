# SPDX-License-Identifier: Apache-2.0
"""Which requests are the user's own.

Any page that a browser shows may send requests to 127.0.0.1. A foreign page gives itself away by
its Origin; one that has its own name resolve to 127.0.0.1 (DNS rebinding) by its Host. Ports are
not compared: through a tunnel the browser's may be another.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

LOOPBACK = "127.0.0.1"
_LOCAL = ("localhost", LOOPBACK, "::1")


def host_of(header: str | None) -> str | None:
    """The name in a Host header, lower case, without port and brackets; None if there is none."""
    if not header or any(character in header for character in "/@\\ ?#"):
        return None
    try:
        return urlsplit(f"//{header}").hostname
    except ValueError:
        return None


def host_is_ours(header: str | None, listening: Collection[str] = ()) -> bool:
    """Whether a Host header names this server.

    Args:
        header: as the client sent it.
        listening: names and addresses that the user asked to listen on, besides the local ones; if
            `0.0.0.0` or `::` is among them any address written in numbers is ours, since no name
            was resolved to get there.
    """
    host = host_of(header)
    if host is None:
        return False
    if host in _LOCAL or host in listening:
        return True
    if not {"0.0.0.0", "::"} & set(listening):
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def origin_is_ours(origin: str | None, host: str | None) -> bool:
    """Whether a request comes from a page of this server; one without Origin does, or is no page's.

    Args:
        origin: the Origin header, `null` for a page without one.
        host: the Host header.
    """
    if origin is None:
        return True
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == (host or "").lower()
