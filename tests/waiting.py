# SPDX-License-Identifier: Apache-2.0
"""The one way in which tests wait for a page: until it is so, which ends at once when it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_SECONDS = 120.0
"""A page that is right may need long on a loaded machine; one that is wrong fails all the same."""
_EVERY_MS = 50


def awaited(page: Any, ask: Callable[[], T], holds: Callable[[T], object] = bool) -> T:
    """What a page tells once it tells what is waited for, or in the end; for an assertion.

    Playwright's own way to wait is forbidden by the policies of our pages.

    Args:
        page: the page, which goes on in between.
        ask: asks it.
        holds: whether the answer is the one.
    """
    end = time.monotonic() + _SECONDS
    answer = ask()
    while not holds(answer) and time.monotonic() < end:
        page.wait_for_timeout(_EVERY_MS)
        answer = ask()
    return answer
