# SPDX-License-Identifier: Apache-2.0
"""Handlers of signals that belong to training and its libraries, not to profiling.

Python runs a handler between any two instructions of the main thread, so also between two of ours,
and what the handler raises comes out of our code. torch raises so when a worker of a data loader
dies, and timeouts are often made so. Such an exception is meant for training.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from collections.abc import Callable, Iterator
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


class PassedOn:
    """While open, training gets what a handler raises in a callback whose exceptions Python drops.

    Python runs the handler of a signal that came amid a collection at the first instruction of a
    callback of the garbage collector, prints what the handler raises, and goes on: the signal would
    be lost. Here it is raised once more, right after the callback.

    Args:
        callback: of ours.
        on_lost: called after the callback was cut short, or did not even begin.
    """

    def __init__(self, callback: Callable[..., None], on_lost: Callable[[], None]) -> None:
        self._callback = callback
        self._on_lost = on_lost
        self._before: Any = None
        # Each must live until Python has asked for its truth.
        self._waiting: list[_RaisedLater] = []

    def open(self) -> None:
        """From now on; `close` must follow."""
        self._before, sys.unraisablehook = sys.unraisablehook, self._look

    def close(self) -> None:
        """Python is told of such exceptions as before; not if somebody else has set a hook since,
        who may call ours, which then does nothing but call the one before."""
        if sys.unraisablehook == self._look:
            sys.unraisablehook = self._before

    def is_under_way(self) -> bool:
        """Whether a handler that amid the callback asks this has yet to return."""
        return _is_run_by((_code_of(self._callback),))

    def _look(self, unraisable: Any) -> None:
        error = unraisable.exc_value
        # Those two come out of a call that Python could not make, and are no handler's.
        if not self._is_of_the_callback(unraisable) or isinstance(
            error, (RecursionError, MemoryError)
        ):
            self._before(unraisable)
            return
        self._on_lost()
        # Handlers run in the main thread only: what another thread is asked to raise is its own.
        if threading.get_ident() != threading.main_thread().ident:
            self._before(unraisable)
        elif error is not None:
            outside = (PassedOn._look.__code__, _code_of(self._callback))
            _RaisedLater(error, outside, self._waiting).ask()

    def _is_of_the_callback(self, unraisable: Any) -> bool:
        # From Python 3.14 on the message alone tells which callback it was.
        return unraisable.object is self._callback or (
            unraisable.object is None
            and str(unraisable.err_msg or "").endswith(f"GC callback {self._callback!r}")
        )


class _RaisedLater:
    """An exception that the main thread raises as soon as it is in none of these codes.

    Between two instructions Python makes the calls of C functions that wait to be made, and an
    exception of such a call is the main thread's. Here that is asking whether this object is true.

    Args:
        error: what is raised.
        outside: the codes.
        waiting: holds this object until then.
    """

    def __init__(
        self,
        error: BaseException,
        outside: tuple[CodeType | None, ...],
        waiting: list[_RaisedLater],
    ) -> None:
        self._error = error
        self._outside = outside
        self._waiting = waiting
        waiting.append(self)

    def ask(self) -> None:
        """Have Python ask, soon."""
        add = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.py_object)(
            ("Py_AddPendingCall", ctypes.pythonapi)
        )
        add(ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p), self)

    def __bool__(self) -> bool:
        if _is_run_by(self._outside):
            self.ask()
            return False
        self._waiting.remove(self)
        raise self._error


def _is_run_by(codes: tuple[CodeType | None, ...]) -> bool:
    """Whether one of these is among what this thread is in."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code not in codes:
        frame = frame.f_back
    return frame is not None


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
