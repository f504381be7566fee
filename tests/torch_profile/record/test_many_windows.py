# SPDX-License-Identifier: Apache-2.0
"""Many windows in one process, as a training of weeks has them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from recordings import end, make, train
from recordings import signals as signals
from written_files import files_below

from megatron.torch_profile.export.own_process import resident_bytes
from megatron.torch_profile.record.recorder import Recorder

WINDOWS = 50
_FEW = 13
"""Iterations, after five windows."""
_SLACK = 64 << 20
"""Bytes that the C library may keep of what was given back."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning"),
]


def held(recorder: Recorder) -> tuple[int, int, int]:
    """Threads, open files and bytes of this process, with no trace on its way."""
    recorder.exporter.wait()
    return threading.active_count(), len([*Path("/proc/self/fd").iterdir()]), resident_bytes()


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
