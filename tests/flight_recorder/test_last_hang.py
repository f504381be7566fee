# SPDX-License-Identifier: Apache-2.0
"""Which hang records of a run are of its last hang."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hang_run import IN_THE_LOADER, WAITS, Run

from megatron.torch_trace.flight_recorder.answer import hang
from megatron.torch_trace.format.hang_records import locked_name

DUMP = """Timeout (0:00:30)!
Thread 0x00007f0000000001 (most recent call first):
  File "/my/lock.py", line 7 in hold
"""


@pytest.mark.parametrize(
    ("earlier", "apart_s", "is_same"),
    [(87, 59.0, True), (87, 61.0, False), (86, 20.0, True), (85, 20.0, False)],
)
def test_records_are_of_one_hang_if_they_are_of_about_one_iteration_and_time(
    earlier: int, apart_s: float, is_same: bool, tmp_path: Path
) -> None:
    """The flag's 30 s and 30 s more, for clocks; stages may be in two iterations."""
    run = Run(tmp_path)
    for rank in (0, 1, 3):
        run.rank(rank, WAITS, began_s=1000.0)
    run.rank(2, WAITS, began_s=1000.0 - apart_s, iteration=earlier)
    answer = hang(tmp_path)
    assert answer.culprits == (() if is_same else (2,))
    assert len(answer.skipped) == (0 if is_same else 1)


def test_of_two_records_of_a_rank_the_later_one_counts(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for rank in (0, 1, 3):
        run.rank(rank, WAITS, began_s=1000.0)
    first = run.rank(2, WAITS, began_s=990.0, iteration=86)
    run.rank(2, IN_THE_LOADER, began_s=1000.0)
    answer = hang(tmp_path)
    assert answer.culprits == (2,)
    assert answer.skipped == ((first, "of an earlier hang"),)


@pytest.mark.parametrize(("written_s", "found"), [(1000.0, True), (960.0, False)])
def test_a_rank_whose_lock_is_kept_is_known_by_what_was_written_in_this_hang(
    written_s: float, found: bool, tmp_path: Path
) -> None:
    run = Run(tmp_path)
    for rank in (0, 1, 3):
        run.rank(rank, WAITS, began_s=1000.0)
    dump = tmp_path / "hangs" / locked_name(2, 4)
    dump.write_text(DUMP)
    os.utime(dump, (written_s, written_s))
    answer = hang(tmp_path)
    assert answer.culprits == (2,)
    assert answer.verdict.startswith(
        "Rank 2 is in no collective: it is in lock.py:7 (hold), and a thread of it keeps Python's "
        "lock, and ranks 0-1, 3 wait for it"
        if found
        else "Rank 2 has left no hang record, and"
    )


def test_a_record_of_its_own_tells_more_than_what_the_lock_left(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for rank in (0, 1, 3):
        run.rank(rank, WAITS, began_s=1000.0)
    run.rank(2, IN_THE_LOADER, began_s=1000.0)
    dump = tmp_path / "hangs" / locked_name(2, 4)
    dump.write_text(DUMP)
    assert hang(tmp_path).verdict.startswith(
        "Rank 2 is in no collective: it is in dataloader.py:88"
    )


def test_only_the_last_hang_of_a_run_counts_and_earlier_ones_are_named(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for rank in range(4):
        run.rank(rank, IN_THE_LOADER, began_s=100, iteration=9)
    for rank in (0, 1, 2):
        run.rank(rank, WAITS, began_s=1000 + rank)
    answer = hang(tmp_path)
    assert answer.culprits == (3,)
    assert sorted(reason for _, reason in answer.skipped) == ["of an earlier hang"] * 4


def test_a_hang_soon_after_another_one_is_a_hang_of_its_own(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for rank in range(4):
        run.rank(rank, IN_THE_LOADER, began_s=1000, iteration=9)
    for rank in (0, 1, 2):
        run.rank(rank, WAITS, began_s=1010, iteration=12 if rank else 11)
    assert hang(tmp_path).culprits == (3,)


def test_records_can_be_named_by_the_run_by_their_folder_and_by_themselves(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for rank in (0, 1, 3):
        run.rank(rank, WAITS)
    run.rank(2, IN_THE_LOADER)
    files = sorted((tmp_path / "hangs").iterdir())
    assert hang(tmp_path).verdict == hang(tmp_path / "hangs").verdict == hang(files).verdict
