# SPDX-License-Identifier: Apache-2.0
"""Many windows in one process, as a training of weeks has them."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from gates import MINUTES
from recordings import end, make, train
from recordings import signals as signals
from recordings import training_stops as training_stops
from slow_stop import needs_stop_in_a_thread
from written_files import files_below

from megatron.torch_profile.export.native_profiler import NativeProfiler, Result
from megatron.torch_profile.record.recorder import Recorder

WINDOWS = 50
_FEW = 13
"""Iterations, after five windows."""
_OPERATORS = 20_000
"""In one window."""
_SLACK = 64 << 20
"""Bytes that the C library may keep of what was given back."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning"),
]


def held(recorder: Recorder) -> tuple[int, int, int]:
    """Threads, open files and bytes of this process, with no file on its way."""
    recorder.exporter.wait()
    for thread in threading.enumerate():
        if thread.name == "torch-profile-iterations":
            thread.join(MINUTES)
    return threading.active_count(), len([*Path("/proc/self/fd").iterdir()]), own_bytes()


def own_bytes() -> int:
    """What this process holds of its own; the system takes pages of files back when it likes."""
    (line,) = re.findall(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(line) << 10


def test_fifty_windows_in_one_process_leave_nothing_behind(tmp_path: Path) -> None:
    recorder = make(tmp_path, last=3 * WINDOWS, repeat=WINDOWS)
    train(recorder, range(1, _FEW))
    few = held(recorder)
    train(recorder, range(_FEW, 2 * WINDOWS + 3))
    all_of_them = held(recorder)
    end(recorder)
    assert len(files_below(tmp_path)) == WINDOWS
    assert all_of_them[:2] == few[:2]
    assert all_of_them[2] - few[2] < _SLACK


@needs_stop_in_a_thread
def test_one_thread_stops_saves_and_frees_every_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each thread has another arena of the C library, and each arena keeps some memory of a window.
    seen: list[tuple[str, int]] = []
    for kind, name in ((NativeProfiler, "stop"), (Result, "save"), (Result, "free")):
        call = getattr(kind, name)

        def noted(*args: Any, name: str = name, call: Any = call) -> Any:
            seen.append((name, threading.get_native_id()))
            return call(*args)

        monkeypatch.setattr(kind, name, noted)
    recorder = make(tmp_path, iterations=["3", "7", "11"])
    for first in (1, 5, 9):
        train(recorder, range(first, first + 4))
        recorder.exporter.wait()
    end(recorder)
    assert [name for name, _ in seen] == ["stop", "save", "free"] * 3
    assert len({thread for _, thread in seen}) == 1
    assert seen[0][1] != threading.get_native_id()


@pytest.mark.parametrize("stops", ["thread", "training_stops"])
def test_what_a_window_has_recorded_is_given_back_to_the_system(
    tmp_path: Path, stops: str, request: pytest.FixtureRequest
) -> None:
    if stops != "thread":
        request.getfixturevalue(stops)
    recorder = make(tmp_path, iterations=["3", "7"])
    train(recorder, range(1, 6))  # what the first window loads stays
    before = held(recorder)[2]
    train(recorder, range(6, 8))
    for _ in range(_OPERATORS):
        torch.ones(1)
    recorded = held(recorder)[2] - before
    train(recorder, range(8, 9))
    recorder.exporter.wait()
    recorder.begin_pause()
    left = held(recorder)[2] - before
    end(recorder)
    assert recorded > _OPERATORS * 100
    assert left < _OPERATORS * 1_000
