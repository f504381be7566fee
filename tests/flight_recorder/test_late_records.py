# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  (a sentence that users read stands on one line)
"""A rank that was stopped and goes on writes its hang record long after the others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hang_run import IN_THE_LOADER, SECOND, WAITS, Run, write_flights
from record_builder import RecordBuilder

from megatron.torch_trace.flight_recorder.answer import HangAnswer, hang
from megatron.torch_trace.format.hang_records import locked_name

BEGAN = 1000
LATE = "Rank 2 wrote its record 270 s after the others: until then its process was stopped, or a thread kept Python's lock."
STOPPED = f"Rank 2 did not run when the others wrote their records, and ranks 0-1, 3 wait for it (first in tensor-parallel all_reduce 3). {LATE}"


def four_ranks(folder: Path, late: float, stack: tuple[str, ...] = WAITS) -> dict[int, Path]:
    """Rank 2 writes its record so many seconds after its iteration began, the others after 30."""
    run = Run(folder)
    return {
        rank: run.rank(rank, stack if rank == 2 else WAITS, waited_s=late if rank == 2 else 30)
        for rank in range(4)
    }


def gone_on(rank_2: dict[str, float | None]) -> RecordBuilder:
    """All have completed the second collective; the others wait in the third.

    Args:
        rank_2: when it has called the third, and when that was complete, seconds after the begin.
    """
    built = RecordBuilder(tp0=[0, 1, 2, 3])
    for number in (1, 2):
        built.call([0, 1, 2, 3], "tp0", number, state="completed", **at(number, number))
    built.call([0, 1, 3], "tp0", 3, **at(3, None))
    called, done = rank_2["called"], rank_2["done"]
    if called is not None:
        built.call(2, "tp0", 3, state="completed" if done else "started", **at(called, done))
    return built


def at(called: float, done: float | None) -> dict[str, int | None]:
    seconds = BEGAN + called
    return {
        "time_created_ns": int(seconds * SECOND),
        "time_discovered_completed_ns": None if done is None else int((BEGAN + done) * SECOND),
    }


def answered(folder: Path, late: float, rank_2: dict[str, float | None]) -> HangAnswer:
    write_flights(gone_on(rank_2), four_ranks(folder, late))
    return hang(folder)


def test_a_rank_that_was_stopped_is_named_and_what_it_did_later_blames_nobody(
    tmp_path: Path,
) -> None:
    """It goes on, so the third collective completes; the others wrote that it is pending."""
    answer = answered(tmp_path, 300, {"called": 299, "done": 299.5})
    assert [(one.rank, one.cause.value) for one in answer.blames] == [(2, "stopped")]
    assert answer.verdict == STOPPED
    assert answer.advice == (
        "Look for what stopped the process: SIGSTOP, a debugger, a host that was frozen or out of memory (`dmesg`). It runs again, and the training may go on."
    )


def test_what_completed_while_a_rank_was_stopped_was_seen_too_late(tmp_path: Path) -> None:
    """Its GPU had completed the second collective, which torch saw when the process went on."""
    built = gone_on({"called": 299, "done": 299.5})
    built.entries[2][1]["time_discovered_completed_ns"] = (BEGAN + 298) * SECOND
    write_flights(built, four_ranks(tmp_path, 300))
    assert hang(tmp_path).verdict == STOPPED


@pytest.mark.parametrize("late", [31.0, 59.0])
def test_a_rank_that_is_a_little_late_is_not_said_to_have_been_stopped(
    late: float, tmp_path: Path
) -> None:
    """What it called after the others had written is left out all the same."""
    answer = answered(tmp_path, late, {"called": late - 0.5, "done": late - 0.2})
    assert [(one.rank, one.cause.value) for one in answer.blames] == [(2, "not_in_a_collective")]


def test_a_late_rank_that_waits_as_all_do_is_said_though_nobody_is_blamed(tmp_path: Path) -> None:
    answer = answered(tmp_path, 300, {"called": 3, "done": None})
    assert answer.culprits == ()
    assert answer.verdict.startswith("All ranks of every pending collective have called it")
    assert answer.verdict.endswith(f" {LATE}")


def test_by_stacks_alone_a_late_rank_was_stopped_wherever_it_is_now(tmp_path: Path) -> None:
    four_ranks(tmp_path, 300, IN_THE_LOADER)
    answer = hang(tmp_path)
    assert [(one.rank, one.cause.value) for one in answer.blames] == [(2, "stopped")]
    assert answer.verdict.startswith("Rank 2 did not run when the others wrote their records, and")


def test_a_rank_that_writes_in_its_own_time_is_not_late(tmp_path: Path) -> None:
    """The others wrote early, because NCCL's watchdog was about to end them."""
    run = Run(tmp_path)
    for rank in (0, 1, 3):
        run.rank(rank, WAITS, waited_s=9)
    run.rank(2, IN_THE_LOADER, waited_s=45)
    assert [one.cause.value for one in hang(tmp_path).blames] == ["not_in_a_collective"]


@pytest.mark.parametrize(
    ("written_s", "cause"), [(65.0, "not_in_a_collective"), (300.0, "stopped")]
)
def test_stacks_that_faulthandler_wrote_when_the_process_went_on_show_no_kept_lock(
    written_s: float, cause: str, tmp_path: Path
) -> None:
    """Its thread stops with the process, and finds that its time is over when both go on."""
    run = Run(tmp_path)
    for rank in (0, 1, 3):
        run.rank(rank, WAITS)
    dump = tmp_path / "hangs" / locked_name(2, 4)
    dump.write_text('Thread 0x1 (most recent call first):\n  File "/my/lock.py", line 7 in hold\n')
    os.utime(dump, (BEGAN + written_s, BEGAN + written_s))
    assert [(one.rank, one.cause.value) for one in hang(tmp_path).blames] == [(2, cause)]
