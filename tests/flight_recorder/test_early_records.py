# SPDX-License-Identifier: Apache-2.0
"""Hang records of an iteration that was only slow."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from record_builder import RecordBuilder

from megatron.torch_trace.flight_recorder.answer import HangAnswer, hang
from megatron.torch_trace.format.hang_records import (
    FLIGHT_SUFFIX,
    HANG_SUFFIX,
    HangName,
    HangRecord,
    ThreadStack,
)

WRITTEN = 1_000_000_000_000
MS = 1_000_000
AT_WORK = (
    "Nothing hung when the records were written: every rank had called a collective within 300 ms "
    "before, and none was pending for longer. Iteration 1 merely took longer than the 6 s of "
    "--torch-profile-on-hang."
)


def answer(
    folder: Path,
    calls: dict[int, list[tuple[str, int]]],
    *,
    world: int = 2,
    seconds: float = 6.0,
    iteration: dict[int, int] | None = None,
    odd: int | None = None,
) -> HangAnswer:
    """Of ranks that are in a forward pass.

    Args:
        calls: of each rank, the states of its calls and how long before the record they were made,
            ms.
        iteration: of ranks that are in another one than the first; a later one began later.
        odd: a rank of whose record an entry makes no sense.
    """
    (folder / "hangs").mkdir()
    for rank, made in calls.items():
        number = (iteration or {}).get(rank, 1)
        record = HangRecord(
            rank=rank,
            world_size=world,
            host="node0",
            pid=100 + rank,
            iteration=number,
            seconds=seconds,
            written_ns=WRITTEN,
            began_ns=WRITTEN - int(seconds * 1e9) + number,
            modules=(),
            micro_batch=None,
            threads=(ThreadStack("MainThread", True, ("/my/layer.py:7 forward",), ""),),
        )
        stem = HangName(rank, number).stem
        (folder / "hangs" / f"{stem}{HANG_SUFFIX}").write_text(record.as_text())
        built = RecordBuilder(tp0=[0, 1])
        for sequence, (state, ms) in enumerate(made):
            built.call(rank, "tp0", sequence, state=state, time_created_ns=WRITTEN - ms * MS)
        if rank == odd:
            built.call(rank, "tp0", len(made), record_id="x")
        if made:
            flight = folder / "hangs" / f"{stem}{FLIGHT_SUFFIX}"
            flight.write_bytes(pickle.dumps(built.record(rank), 2))
    return hang(folder)


def test_ranks_that_call_collectives_all_the_time_are_at_work(tmp_path: Path) -> None:
    behind = [("completed", 900), ("scheduled", 300), ("scheduled", 20)]
    found = answer(tmp_path, {0: behind, 1: [("completed", 5000), ("completed", 100)]})
    assert (found.verdict, found.culprits) == (AT_WORK, ())
    assert found.advice == (
        "Give --torch-profile-on-hang more seconds than the longest iteration takes, the first one "
        "included."
    )


@pytest.mark.parametrize(
    "calls",
    [
        {0: [("scheduled", 5000)], 1: [("completed", 100)]},
        {0: [("scheduled", 300)], 1: [("completed", 5000)]},
        {0: [("scheduled", 1000)], 1: [("scheduled", 1000)]},
        {0: [("scheduled", 300)], 1: []},
        {0: [("scheduled", 300)]},
        {0: [("scheduled", 300)], 1: [("scheduled", -5)]},
    ],
    ids=[
        "pending for long",
        "calls nothing",
        "for a second",
        "no flight record",
        "no record",
        "by another clock",
    ],
)
def test_one_rank_that_may_hang_is_enough(
    calls: dict[int, list[tuple[str, int]]], tmp_path: Path
) -> None:
    assert "Nothing hung" not in answer(tmp_path, calls).verdict


def test_with_few_seconds_of_the_flag_less_than_a_fourth_of_them_is_short(tmp_path: Path) -> None:
    calls = {0: [("scheduled", 300)], 1: [("scheduled", 300)]}
    assert "Nothing hung" not in answer(tmp_path, calls, seconds=1.0).verdict


def test_the_newest_iteration_of_the_ranks_is_named(tmp_path: Path) -> None:
    calls = {0: [("scheduled", 300)], 1: [("scheduled", 200)]}
    found = answer(tmp_path, calls, iteration={1: 2})
    assert found.verdict == AT_WORK.replace("Iteration 1", "Iteration 2")


def test_a_rank_of_whose_calls_some_are_unknown_may_hang_in_one_of_these(tmp_path: Path) -> None:
    calls = {0: [("scheduled", 300)], 1: [("scheduled", 200)]}
    assert "Nothing hung" not in answer(tmp_path, calls, odd=1).verdict
