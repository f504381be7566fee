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


@pytest.mark.parametrize("before", ["", "signal.signal(signal.SIGTERM, lambda *_: os._exit(3))"])
def test_a_forked_child_gets_a_signal_that_is_faster_than_its_first_line(before: str) -> None:
    code = f"import os, signal\n{before}\n{FASTER}"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("{3}\n" if before else "{-15}\n", "")


def test_a_signal_that_comes_in_a_fork_is_served_once_and_nothing_stays_blocked() -> None:
    ended = subprocess.run([sys.executable, "-c", MEANWHILE], capture_output=True, text=True)
    assert (ended.stdout.splitlines(), ended.stderr) == (
        ["comes", "parent flushes for 15", "child ended with 0", "blocked: set() set()"],
        "",
    )


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

FASTER = """
import time
from megatron.torch_profile.record.signals import FlushOnSignal

FlushOnSignal(lambda number, dies: True).install()
statuses = set()
for _ in range(30):
    if not (child := os.fork()):
        for _ in range(3000):
            # Python itself serves a signal that comes as a sleep begins at the end of this sleep.
            time.sleep(0.01)
        os._exit(0)
    os.kill(child, signal.SIGTERM)
    statuses.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(statuses)
"""
"""Most children are sent the signal before the system has given them a core."""

MEANWHILE = """
import os, signal, subprocess, sys

def comes():
    if signals.taken:
        print("comes", flush=True)
        os.kill(os.getpid(), signal.SIGTERM)

os.register_at_fork(before=comes)  # before ours, so called after it
from megatron.torch_profile.record.signals import FlushOnSignal

parent = os.getpid()

def flush(number, dies):
    print("parent" if os.getpid() == parent else "child", "flushes for", number, flush=True)
    return True

signal.signal(signal.SIGTERM, lambda *_: None)
signals = FlushOnSignal(flush)
signals.install()
if not (child := os.fork()):
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    os._exit(len(blocked))
print("child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
signals.remove()
print("blocked:", signal.pthread_sigmask(signal.SIG_BLOCK, ()), end=" ", flush=True)
show = "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))"
subprocess.run([sys.executable, "-c", show], preexec_fn=lambda: None)
"""
