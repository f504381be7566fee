# SPDX-License-Identifier: Apache-2.0
"""Signals that end a job: what is recorded is saved first, once, however often they come.

torchrun passes SIGTERM on to its ranks, and SIGHUP when its terminal closes; srun sends SIGTERM to
each task, up to three times; `--signal` sends USR1 or USR2 some time before a limit. Their default
action is death without a word. Here the open window is exported, then whoever handled the signal
before is asked (Megatron's --exit-signal-handler goes on to save its checkpoint), and where nobody
did, the process dies of the signal as it would have.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

from megatron.torch_profile.config import TorchProfileConfig
from megatron.torch_profile.signal_handlers import HeldHandlers

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


_installed: set[FlushOnSignal] = set()
_forking = threading.local()


class FlushOnSignal:
    """While installed, a signal of `SIGNALS` calls `flush` before anything else happens.

    Args:
        flush: saves what there is; must not raise. Called with the signal and whether the process
            will die of it; False if it cannot now, and then calls `serve_pending` when it can.
        spared: signals that mean something else here.
    """

    def __init__(
        self, flush: Callable[[int, bool], bool], spared: Collection[signal.Signals] = ()
    ) -> None:
        self._flush = flush
        self._spared = spared
        self._before: dict[int, Any] = {}
        self._pid = os.getpid()
        self._flushed = False
        self._flushing = False
        self._pending: int | None = None

    @property
    def pending(self) -> bool:
        """Whether a signal waits to be served."""
        return self._pending is not None

    @property
    def taken(self) -> tuple[int, ...]:
        """Signals that are taken over."""
        return tuple(self._before)

    def install(self) -> None:
        """Take over the signals; only the main thread can, elsewhere it does nothing."""
        if threading.current_thread() is not threading.main_thread():
            return
        in_c = _caught() & {signal.SIGUSR1, signal.SIGUSR2}
        for number in SIGNALS:
            if number in self._spared:
                continue
            before = signal.getsignal(number)
            if before is None or before is signal.SIG_IGN:
                continue  # not Python's to give back, or unwanted by choice
            if before is signal.SIG_DFL and number in in_c:
                continue  # of faulthandler.register and the like: the process does not die of it
            self._before[number] = before
            signal.signal(number, self._handle)
        _watch_forks()
        _installed.add(self)

    def remove(self) -> None:
        """Give the signals back to whom they belonged, unless somebody took them since."""
        _installed.discard(self)
        for number, before in self._before.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, before)
        self._before.clear()

    def serve_pending(self) -> None:
        """Serve a signal that came while it could not be served."""
        if self._pending is not None:
            number, self._pending = self._pending, None
            os.kill(os.getpid(), number)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        before = self._before.get(number, signal.SIG_DFL)
        dies = not callable(before)
        others = HeldHandlers()
        if os.getpid() == self._pid:  # not in a forked child
            if self._flushing:
                return  # a second signal, while the first is served, changes nothing
            if not self._flushed:
                self._flushing = True
                try:
                    with others:
                        self._flushed = self._flush(number, dies)
                finally:
                    self._flushing = False
                if not self._flushed:
                    self._pending = number
                    return others.replay()
        if callable(before):
            before(number, frame)
            others.replay()
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


@lru_cache(maxsize=1)
def _watch_forks() -> None:
    os.register_at_fork(before=_hold, after_in_parent=_let_through, after_in_child=_as_without_us)


def _hold() -> None:
    """Have signals that are ours wait for as long as a fork takes.

    Until a child has run its first lines of Python, it has our handlers; Python forgets a signal
    that comes by then (`_PySignal_AfterFork`), and the child that should die of it would live. A
    pool that ends while the system has no core for its newest worker would wait for ever.
    """
    # Asked first: a handler that runs in the second call may raise, and then its answer is lost.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    _forking.__dict__.setdefault("masks", []).append(before)
    ours = {number for installed in list(_installed) for number in installed.taken}
    signal.pthread_sigmask(signal.SIG_BLOCK, ours)


def _let_through() -> None:
    """Have what came meanwhile be served; a child has none of its parent's."""
    if masks := _forking.__dict__.get("masks"):  # not where a fork was under way at the first call
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.pop())


def _as_without_us() -> None:
    """Have a forked child die of a signal at once, where it would without us.

    A handler in Python runs when Python goes on. A worker that waits for a lock does not, and its
    pool would wait for its end for ever.
    """
    for installed in list(_installed):
        with suppress(ValueError, OSError):
            installed.remove()
    _let_through()


def signals_that_ask(config: TorchProfileConfig) -> tuple[signal.Signals, ...]:
    """Signals that ask for a window, and so end nothing."""
    return (signal.SIGUSR2,) if "signal" in (config.trigger or ()) else ()


def _caught() -> set[int]:
    """Signals for which this process has a handler, also one that Python does not know."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            name, _, mask = line.partition(":")
            if name == "SigCgt":
                return {number for number in SIGNALS if int(mask, 16) >> (number - 1) & 1}
    return set()
