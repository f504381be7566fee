# SPDX-License-Identifier: Apache-2.0
"""A thread of low priority that is begun once and lasts, for memory's sake.

What a thread allocates comes from an arena of glibc's. There are eight for each core, and a
training has more threads: then each new thread shares the arena of others, the next one in a round,
and every arena in which much was held keeps some of it for good. One thread has one arena.

Source: mallopt(3), M_ARENA_MAX.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class LastingThread:
    """Answers calls one after the other, in a thread that lasts as long as the process.

    Who has once lowered its priority cannot raise it, so the thread has no other work.

    Args:
        name: of the thread.
        nicer: by how much its priority is lower than that of the thread that calls first.
    """

    def __init__(self, name: str, nicer: int) -> None:
        self._name, self._nicer = name, nicer
        self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._busy = threading.Lock()

    def answer(self, call: Callable[[], Any]) -> Any:
        """What `call` returns or raises there.

        While the thread is at work for somebody else another one answers, which ends with that; the
        caller itself does where the system allows no more threads.
        """
        if not self._busy.acquire(blocking=False):
            return self._in_another(call)
        try:
            # A fork has the object, and not the thread.
            if self._thread is None or not self._thread.is_alive():
                self._calls = queue.SimpleQueue()
                self._thread = self._begun(self._calls, lasts=True)
            if self._thread is None:
                return call()
            asked = _Call(call)
            self._calls.put(asked)
            return asked.wait()
        finally:
            self._busy.release()

    def _in_another(self, call: Callable[[], Any]) -> Any:
        calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        if self._begun(calls, lasts=False) is None:
            return call()
        asked = _Call(call)
        calls.put(asked)
        return asked.wait()

    def _begun(self, calls: queue.SimpleQueue[_Call], *, lasts: bool) -> threading.Thread | None:
        thread = threading.Thread(
            target=self._work, args=(calls, lasts), name=self._name, daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # a limit on processes
            return None
        return thread

    def _work(self, calls: queue.SimpleQueue[_Call], lasts: bool) -> None:
        self._lower()
        # What was called and answered must not be held until the next call.
        calls.get().run()
        while lasts:
            calls.get().run()

    def _lower(self) -> None:
        me = threading.get_native_id()
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, me, os.getpriority(os.PRIO_PROCESS, me) + self._nicer)


class _Call:
    """A call and what came of it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call: Callable[[], Any] | None = call
        self._answer: Any = None
        self._error: BaseException | None = None
        self._done = threading.Event()

    def run(self) -> None:
        call, self._call = self._call, None
        assert call is not None
        try:
            self._answer = call()
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()

    def wait(self) -> Any:
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._answer
