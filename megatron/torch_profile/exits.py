# SPDX-License-Identifier: Apache-2.0
"""What is called at the end of the process, also where that end tells Python nothing.

train_rl.py leaves by `os._exit`, which calls nothing that `atexit` knows: `end_now` calls what is
registered here before.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable

_calls: list[Callable[[], object]] = []


def at_exit(call: Callable[[], object]) -> None:
    """Call this at the end of the process; what is registered last is called first."""
    atexit.register(call)
    _calls.append(call)


def not_at_exit(call: Callable[[], object]) -> None:
    """Do not call this any more; what is not registered is no error."""
    atexit.unregister(call)
    if call in _calls:
        _calls.remove(call)


def end_now() -> None:
    """Call what the end of the process would; each is called once."""
    while _calls:
        call = _calls[-1]
        not_at_exit(call)
        call()
