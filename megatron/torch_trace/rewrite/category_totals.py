# SPDX-License-Identifier: Apache-2.0
"""Events and bytes by category."""

from __future__ import annotations

Account = dict[str, list[int]]
"""Category -> [events, bytes]."""


def count(account: Account, name: str, size: int, events: int = 1) -> None:
    """Add events of a category and the bytes of their text."""
    entry = account.get(name)
    if entry is None:
        account[name] = [events, size]
    else:
        entry[0] += events
        entry[1] += size
