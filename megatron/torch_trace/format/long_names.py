# SPDX-License-Identifier: Apache-2.0
"""Names that are longer than anybody reads or stores."""

from __future__ import annotations

from functools import lru_cache

MOST_ANALYSED = 10_000
"""Characters of a name in an analysis; templates of C++ reach some thousands."""


@lru_cache(maxsize=1 << 16)
def shortened(name: str, most: int) -> str:
    """A name's beginning and a number made of all of it: different names stay different."""
    from hashlib import blake2b

    number = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()
    return f"{name[: most - len(number) - 1]}#{number}"


def analysed(name: str) -> str:
    """The name as an analysis keeps it: one of 100 MB would fill every table and page."""
    return name if len(name) <= MOST_ANALYSED else shortened(name, MOST_ANALYSED)
