# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  (a sentence that users read stands on one line)
"""Gloo ranks, one of which hangs: what each rank leaves, and what `torch-trace hang` says."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from toy_runs import ENVIRONMENT, ROOT, SECONDS, python
from written_files import files_below

TOY = str(Path(__file__).with_name("toy_hang.py"))


@contextmanager
def training(
    folder: Path, how: str, ranks: int, flight_calls: int = 2000
) -> Iterator[subprocess.Popen[bytes]]:
    """A launch that is ended with all its ranks, also those that are stopped.

    Args:
        flight_calls: of which torch keeps a record.
    """
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", TOY]
    os.mkfifo(folder / "data")
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [python(), *launch, str(folder), how],
            env={**ENVIRONMENT, "PYTHON_EXEC": python(), "TORCH_FR_BUFFER_SIZE": str(flight_calls)},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        for pid in re.findall(r"pid (\d+)", log.read_text()):
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        process.kill()
        process.wait(SECONDS)


def wait_for_records(folder: Path, count: int) -> list[str]:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        found = [one for one in files_below(folder) if one.endswith(".hang.json")]
        if len(found) == count:
            return sorted(found)
        time.sleep(0.2)
    raise AssertionError((folder / "log").read_text())


def data_come(folder: Path) -> None:
    """What the last rank waits for."""
    (folder / "data").write_bytes(b"x")


def hang(folder: Path) -> dict[str, Any]:
    ended = subprocess.run(
        [sys.executable, "-m", "megatron.torch_trace", "hang", str(folder), "--json"],
        env=ENVIRONMENT,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=SECONDS,
    )
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer


def test_a_rank_whose_data_come_late_is_named_with_its_line_and_training_goes_on(
    tmp_path: Path,
) -> None:
    with training(tmp_path, "fetch", 2) as process:
        records = wait_for_records(tmp_path, 2)
        assert records == [
            "hangs/rank-0.iter-0000004.hang.json",
            "hangs/rank-1.iter-0000004.hang.json",
        ]
        data_come(tmp_path)
        assert process.wait(SECONDS) == 0
    log = (tmp_path / "log").read_text()
    assert "rank 1 step 6" in log
    # Once for each hang, and nothing of what goes on afterwards.
    assert wait_for_records(tmp_path, 2) == records
    assert log.count("no iteration has ended for 600 s (iteration 4)") == 2
    answer = hang(tmp_path)
    assert answer["culprits"] == [1]
    verdict = re.sub(r"py:\d+", "py:LINE", answer["verdict"])
    assert verdict == (
        "Rank 1 is in no collective: it is in toy_hang.py:LINE (hang, data loader), and rank 0 waits for it (first in default-group all_reduce 9)."
    )
    assert [one["iteration"] for one in answer["ranks"]] == [4, 4]
    assert answer["ranks"][1]["python"][0].endswith(" hang")


def test_a_rank_whose_thread_keeps_pythons_lock_is_named_with_its_line(tmp_path: Path) -> None:
    with training(tmp_path, "lock", 2) as process:
        (record,) = wait_for_records(tmp_path, 1)
        assert record.endswith("rank-0.iter-0000004.hang.json")
        stacks = tmp_path / "hangs" / "rank-1.lock.txt"
        end = time.monotonic() + SECONDS
        while not stacks.stat().st_size and time.monotonic() < end:
            time.sleep(0.1)
        answer = hang(tmp_path)
        data_come(tmp_path)
        assert process.wait(SECONDS) == 0, "training goes on"
    assert answer["culprits"] == [1]
    verdict = re.sub(r"py:\d+", "py:LINE", answer["verdict"])
    assert verdict == (
        "Rank 1 is in no collective: it is in toy_hang.py:LINE (hang, data loader), and a thread of it keeps Python's lock, and rank 0 waits for it (first in all_reduce, toy_hang.py:LINE train)."
    )
    log = (tmp_path / "log").read_text()
    assert "rank 1: a thread kept Python's lock for more than 2 s" in log
    # An empty file of the other rank goes with the end of training.
    assert [one for one in files_below(tmp_path) if one.endswith(".txt")] == [
        "hangs/rank-1.lock.txt"
    ]


def test_a_rank_that_is_stopped_leaves_no_record_and_is_named(tmp_path: Path) -> None:
    with training(tmp_path, "stop", 2):
        wait_for_records(tmp_path, 1)
        answer = hang(tmp_path)
    assert answer["culprits"] == [1]
    verdict = re.sub(r"py:\d+", "py:LINE", answer["verdict"])
    assert verdict == (
        "Rank 1 has left no hang record, and rank 0 waits for it (first in all_reduce, toy_hang.py:LINE train)."
    )
    assert [one["state"] for one in answer["ranks"]] == ["waiting", "missing"]


def test_of_three_ranks_the_one_in_another_collective_is_named_by_stacks_alone(
    tmp_path: Path,
) -> None:
    with training(tmp_path, "skip", 3, flight_calls=0):
        wait_for_records(tmp_path, 3)
        answer = hang(tmp_path)
    assert answer["culprits"] == [2]
    verdict = re.sub(r"py:\d+", "py:LINE", answer["verdict"])
    assert verdict == (
        "Rank 2 never called all_reduce, toy_hang.py:LINE train, in which ranks 0-1 wait. It waits in barrier in toy_hang.py:LINE (hang)."
    )
