# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while a program still imports what it needs: no traceback, and status 130.

The moment is an import, told by its name: Python looks for this module, and gets the signal.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from megatron.torch_trace.commands.terminal import interruption
from megatron.torch_trace.system import leftovers

ROOT = Path(__file__).parents[3]
CONSOLE = ("-c", "from megatron_torch_profile import torch_trace; torch_trace()")
MODULE = ("-m", "megatron.torch_trace")
RECORDER = ("-m", "megatron.torch_profile")
BESIDE_OLD_MEGATRON = ("-m", "megatron_torch_profile")
COMPONENT = ("-m", "megatron.torch_profile.component")
AT_IMPORT = """
import os, signal, sys

class AtImport:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == os.environ["AT"]:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, getattr(signal, os.environ["BEFORE"]))
sys.meta_path.insert(0, AtImport)
"""


def interrupted(
    folder: Path, program: tuple[str, ...], at: str, before: str = "default_int_handler"
) -> tuple[int, str]:
    """Status, and what a program has said on stderr.

    Args:
        folder: to work in.
        program: as Python is told it; it gets a script that imports `colorsys`.
        at: the module at whose import it is interrupted.
        before: who handles SIGINT when it begins.
    """
    (folder / "sitecustomize.py").write_text(AT_IMPORT)
    (folder / "script.py").write_text("import colorsys\n")
    done = subprocess.run(
        [sys.executable, *program, "script.py"],
        env={**os.environ, "PYTHONPATH": f"{folder}:{ROOT}", "AT": at, "BEFORE": before},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("program", "at"),
    [
        (CONSOLE, "megatron.torch_trace"),
        (CONSOLE, "click"),
        (MODULE, "megatron.torch_trace.commands"),
        (MODULE, "click"),
        (RECORDER, "megatron.torch_profile.log"),
        (RECORDER, "megatron.torch_profile.hooks.megatron_names"),
        (BESIDE_OLD_MEGATRON, "megatron.torch_profile.__main__"),
        (COMPONENT, "click"),
    ],
    ids=lambda value: value[1].partition(";")[0] if isinstance(value, tuple) else value,
)
def test_a_program_that_is_interrupted_before_it_works_is_quiet(
    program: tuple[str, ...], at: str, tmp_path: Path
) -> None:
    assert interrupted(tmp_path, program, at) == (130, "")


def test_a_command_that_works_says_that_it_left_nothing(tmp_path: Path) -> None:
    stopped = (130, f"torch-trace: {interruption.STOPPED}\n")
    assert interrupted(tmp_path, (*CONSOLE, "info"), "msgspec") == stopped


def test_what_interrupts_the_users_script_is_the_scripts_own_affair(tmp_path: Path) -> None:
    status, said = interrupted(tmp_path, RECORDER, "colorsys")
    assert status != 130
    assert said.endswith("KeyboardInterrupt\n")


@pytest.mark.parametrize("program", [CONSOLE, RECORDER], ids=["torch-trace", "recorder"])
def test_a_program_in_the_background_does_not_hear_of_it(
    program: tuple[str, ...], tmp_path: Path
) -> None:
    status, said = interrupted(tmp_path, program, "megatron.torch_trace", "SIG_IGN")
    assert status != 130
    assert "Traceback" not in said


def test_a_signal_waits_until_a_process_that_is_started_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(interruption.leftovers, "clear", lambda: None)
    before = signal.signal(signal.SIGINT, interruption._end)
    try:
        with leftovers.being_started(), leftovers.being_started():
            signal.raise_signal(signal.SIGINT)
            assert ended == []
        assert ended == [130]
    finally:
        signal.signal(signal.SIGINT, before)
