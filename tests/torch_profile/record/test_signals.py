# SPDX-License-Identifier: Apache-2.0
"""Signals: which ones are taken over, and that everybody gets back what was his."""

from __future__ import annotations

import faulthandler
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatron.torch_profile.record.signals import SIGNALS, FlushOnSignal


@pytest.fixture
def flushed() -> Iterator[list[int]]:
    """Signals for which a flush was asked; signals are put back."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield []
    for number, handler in before.items():
        signal.signal(number, handler)


def watching(flushed: list[int]) -> FlushOnSignal:
    def flush(number: int, dies: bool) -> bool:
        flushed.append(number)
        return True

    signals = FlushOnSignal(flush)
    signals.install()
    return signals


def test_a_signal_that_dumps_stacks_goes_on_doing_so(tmp_path: Path, flushed: list[int]) -> None:
    with (tmp_path / "stacks").open("w") as stacks:
        faulthandler.register(signal.SIGUSR1, stacks, all_threads=False)  # in C
        try:
            signals = watching(flushed)
            signal.raise_signal(signal.SIGUSR1)
            signals.remove()
            signal.raise_signal(signal.SIGUSR1)
        finally:
            faulthandler.unregister(signal.SIGUSR1)
    assert flushed == []
    assert (tmp_path / "stacks").read_text().count("most recent call first") == 2


def test_what_is_ignored_stays_so_and_what_is_handled_is_handed_on(flushed: list[int]) -> None:
    served: list[int] = []
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, lambda number, _: served.append(number))
    signals = watching(flushed)
    for number in (signal.SIGHUP, signal.SIGUSR2, signal.SIGUSR2):
        signal.raise_signal(number)
    signals.remove()
    signal.raise_signal(signal.SIGUSR2)
    assert (flushed, served) == ([signal.SIGUSR2], [signal.SIGUSR2] * 3)


def test_a_forked_child_has_the_signals_as_they_were() -> None:
    ended = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("parent keeps it: True\nchild died of 15\n", "")


FORKS = """
import os, signal
from megatron.torch_profile.record.signals import FlushOnSignal

FlushOnSignal(lambda number, dies: True).install()
if not (child := os.fork()):
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        os.kill(os.getpid(), signal.SIGTERM)
    os._exit(0)
print("parent keeps it:", signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL, flush=True)
print("child died of", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) * -1)
"""
"""A worker that waits for a lock could not run a handler in Python, and its pool would hang."""
