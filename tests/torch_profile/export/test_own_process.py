# SPDX-License-Identifier: Apache-2.0
"""Programs beside training give way to it, and say in one line of its log what went wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

_ASK = """
import ctypes, os
from {room} import {program}
import {room_of_work} as work
from megatron.torch_trace.errors import DamagedTraceError

def fail(*_args, **_options):
    raise errors.pop()

work.{work} = fail
errors = [ValueError("no number"), PermissionError(13, "Permission denied", "x"), OSError()]
errors.append(DamagedTraceError("x: holds no trace."))
while errors:
    {program}.main({arguments!r})
signal = ctypes.c_int()
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(2, ctypes.byref(signal))  # the signal that comes when the parent ends
print(os.nice(0), signal.value)
"""


@pytest.mark.parametrize(
    ("program", "room_of_work", "work"),
    [
        ("export.artifacts", "megatron.torch_profile.export.artifacts", "write"),
        ("export.kept_analysis", "megatron.torch_trace.analysis.run.kept_analyses", "keep"),
        ("publish.window_summary", "megatron.torch_profile.publish.window_summary", "_analyse"),
    ],
)
def test_each_says_a_failure_alike_in_one_line_and_ends_with_training(
    tmp_path: Path, program: str, room_of_work: str, work: str
) -> None:
    window = tmp_path / "iter-0000003"
    window.mkdir()
    trace = window / "rank-0.pt.trace.json"
    trace.touch()
    summary = program == "publish.window_summary"
    of_window = [str(window), "--ranks", "0", "--wait", "0", "--analyse"]
    room, _, module = f"megatron.torch_profile.{program}".rpartition(".")
    code = "import sys\n" + _ASK.format(
        room=room,
        program=module,
        room_of_work=room_of_work,
        work=work,
        arguments=of_window if summary else [str(trace)],
    )
    said = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=300
    )
    *answers, manner = said.stdout.splitlines()
    known = {"traces": [str(trace)]} if summary else {}
    assert [json.loads(answer) for answer in answers] == [
        {**known, "error": error}
        for error in (
            "x: holds no trace.",
            "OSError",
            "[Errno 13] Permission denied: 'x'",
            "ValueError: no number",
        )
    ]
    assert manner == ("19 9" if sys.platform == "linux" else "19 0")
    assert not said.stderr
