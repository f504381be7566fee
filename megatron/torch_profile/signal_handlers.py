# SPDX-License-Identifier: Apache-2.0
"""Handlers of signals that belong to training and its libraries, not to profiling.

Python runs a handler between any two instructions of the main thread, so also between two of ours,
and what the handler raises comes out of our code. torch raises so when a worker of a data loader
dies, and timeouts are often made so. Such an exception is meant for training.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from types import CodeType, FrameType, TracebackType
from typing import Any


def was_raised_by_a_handler(error: BaseException) -> bool:
    """Whether an exception came out of a handler of somebody else's that ran amid our code.

    Args:
        error: as it was caught, with its traceback.
    """
    codes = {code for handler in _of_others().values() if (code := _code_of(handler)) is not None}
    return any(frame.f_code in codes for frame in _frames(error.__traceback__))


class HeldHandlers:
    """While held, no handler of somebody else's runs, so none can cut short what we must finish.

    SIGINT is not held: who presses Ctrl-C wants an end. Outside the main thread nothing is held,
    because no handler runs there.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._came: list[int] = []

    def __enter__(self) -> HeldHandlers:
        if threading.current_thread() is threading.main_thread():
            self._handlers = _of_others()
            self._handlers.pop(signal.SIGINT, None)
            for number in self._handlers:
                signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            if signal.getsignal(number) == self._note:
                signal.signal(number, handler)

    def replay(self) -> None:
        """Have the handlers run for the signals that came; what they raise is not caught."""
        came, self._came = dict.fromkeys(self._came), []
        for number in came:
            signal.raise_signal(number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append(number)


def _of_others() -> dict[int, Any]:
    """Handlers in Python that neither profiling nor Python itself has set, by signal."""
    found = {number: signal.getsignal(number) for number in signal.valid_signals()}
    return {
        number: handler
        for number, handler in found.items()
        if callable(handler)
        and not str(getattr(handler, "__module__", "")).startswith(__package__ or "")
    }


def _code_of(handler: Any) -> CodeType | None:
    """The code that runs first; None for what is written in C."""
    function = getattr(handler, "func", handler)  # of a functools.partial
    function = getattr(function, "__func__", function)
    if not hasattr(function, "__code__"):  # an object with __call__
        function = type(function).__call__
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _frames(traceback: TracebackType | None) -> Iterator[FrameType]:
    while traceback is not None:
        yield traceback.tb_frame
        traceback = traceback.tb_next
