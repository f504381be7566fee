# SPDX-License-Identifier: Apache-2.0
"""What a signal does to a command: it ends at once, and leaves nothing unfinished.

An exception out of a signal handler may come up anywhere, also where Python or a library swallows
it or makes a traceback of it. So the handler itself removes what is unfinished and ends the
process. Only a command that has something to close asks for the exception, with `as_exception`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from megatron.torch_trace.system import leftovers

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOPPED = "stopped; nothing unfinished was left behind."
_SHOW_CURSOR = "\x1b[?25h"
_kept: list[object] | None = None
"""None where the process goes on after a command, as in tests."""


def end_at_once() -> None:
    """From now on Ctrl-C, a batch job's end and a closed terminal end this process, tidily.

    So does the command, which then leaves it to the system to free memory.
    """
    global _kept
    _kept = []
    for number in _SIGNALS:
        # What was started in the background or with nohup is not to hear of these.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _end)


def spare(value: object) -> None:
    """Do not free this before the process ends at once: a million rows take seconds."""
    if _kept is not None:
        _kept.append(value)


@contextmanager
def as_exception() -> Iterator[None]:
    """Inside, Ctrl-C is KeyboardInterrupt, and the other signals are SystemExit."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number in _SIGNALS:
        if before[number] != signal.SIG_IGN:
            signal.signal(number, _raise)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: object) -> None:
    if leftovers.must_wait(number):
        return
    leftovers.clear()
    with suppress(OSError, ValueError):
        # Below Python's own buffers, in the middle of which the signal may have come.
        cursor = _SHOW_CURSOR if os.isatty(2) else ""
        os.write(2, f"{cursor}torch-trace: {STOPPED}\n".encode())
    os._exit(128 + number)


def _raise(number: int, frame: object) -> None:
    if leftovers.must_wait(number):
        return
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)
