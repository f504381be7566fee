# SPDX-License-Identifier: Apache-2.0
"""What is called at the end of the process, and where that end tells Python nothing."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from megatron.torch_profile import exits
from megatron.torch_profile.followers import followers
from megatron.torch_profile.hooks import megatron_names

REGISTERED = """
import os
from megatron.torch_profile import exits

class Noted:
    def __init__(self, word):
        self.word = word

    def say(self):
        print(self.word, flush=True)

first, second, third = map(Noted, ("first", "second", "third"))
for one in (first, second, third):
    exits.at_exit(one.say)
exits.not_at_exit(second.say)
"""


@pytest.mark.parametrize("leaves", ["", "exits.end_now(); os._exit(0)", "exits.end_now()"])
def test_what_is_registered_last_is_called_first_and_once(leaves: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", REGISTERED + leaves], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["third", "first"]


@pytest.mark.parametrize("trains", [False, True])
def test_traces_are_waited_for_before_megatron_leaves_by_os_exit(
    trains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As train_rl.py does, after training and, at an exit interval, inside of it."""
    order: list[str] = []
    monkeypatch.setattr(exits, "_calls", [])
    monkeypatch.setattr(followers, "plan", SimpleNamespace() if trains else None)
    steps = SimpleNamespace(close=lambda: order.append("window closes"))
    monkeypatch.setattr(followers, "steps", steps)
    exits.at_exit(lambda: order.append("traces are written"))
    megatron_names._leave(lambda: order.append("process ends"), None, (), {})
    assert order == ["window closes"] * trains + ["traces are written", "process ends"]


def test_an_end_that_fails_leaves_megatron_its_own(
    monkeypatch: pytest.MonkeyPatch, warned: list[str]
) -> None:
    def fails() -> None:
        raise OSError("no such disk")

    monkeypatch.setattr(exits, "_calls", [])
    monkeypatch.setattr(megatron_names._leaving, "failed", False)
    exits.at_exit(fails)
    assert megatron_names._leave(lambda: "process ends", None, (), {}) == "process ends"
    assert warned == ["the process ends without waiting for its traces: OSError: no such disk"]
