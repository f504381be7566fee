# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  (a sentence that users read stands on one line)
"""Flight records that hold pending calls alone, which Megatron asks torch for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from record_builder import RecordBuilder

from megatron.torch_trace.flight_recorder.answer import HangAnswer, hang

FOUR = {"tp0": [0, 1], "tp1": [2, 3], "dp0": [0, 2], "dp1": [1, 3]}


def answered(
    built: RecordBuilder,
    folder: Path,
    last_called: dict[int, dict[str, int]] | None = None,
    *,
    as_json: bool = False,
) -> HangAnswer:
    """Of records without the calls that are complete.

    Args:
        built: with these calls.
        folder: for the records.
        last_called: by rank, torch's own counts, by its number of the group on this rank.
        as_json: as torch writes JSON, which has no list of calls where there is none.
    """
    for rank, entries in built.entries.items():
        built.entries[rank] = [one for one in entries if one["state"] != "completed"]
    built.write(folder, as_json=True)
    for rank in built.entries:
        path = folder / f"comm_lib_trace_rank_{rank}"
        data = json.loads(path.read_text())
        counts = (last_called or {}).get(rank, {})
        data["pg_status"] = {
            number: {"last_enqueued_collective": str(last)} for number, last in counts.items()
        }
        if as_json and not data["entries"]:
            del data["entries"]
        path.write_text(json.dumps(data))
    return hang(folder)


def tensor_parallel_pairs(*, by_two: str) -> RecordBuilder:
    """Rank 3 has nothing pending, and rank 2 waits in their third collective."""
    built = RecordBuilder(**FOUR)
    for number in (1, 2):
        for pair, group in (([0, 1], "tp0"), ([2, 3], "tp1")):
            built.call(pair, group, number, state="completed", pg_id=5)
    built.call([0, 1], "tp0", 3, pg_id=5)
    built.call(2, "tp1", 3, pg_id=5)
    built.call(3, "tp1", 3, state=by_two, pg_id=5)
    if by_two != "completed":
        built.entries[3].pop()
    return built


BOTH_WAYS = "Rank 3 has nothing pending, and its record does not tell whether it called tensor-parallel all_reduce 3. Either rank 2 waits for it, whose CPU is elsewhere; or it has completed it, and the GPU of rank 2 is stuck."


@pytest.mark.parametrize("by_two", ["completed", "never called"])
def test_a_rank_with_nothing_pending_may_be_ahead_or_elsewhere(by_two: str, tmp_path: Path) -> None:
    answer = answered(tensor_parallel_pairs(by_two=by_two), tmp_path)
    assert (answer.culprits, answer.verdict) == ((), BOTH_WAYS)
    assert answer.advice == (
        "The records hold pending calls alone. Records with complete calls would tell: put `export TORCH_INCLUDE_ONLY_ACTIVE=0` into the launch script (Megatron sets 1 with --flight-recorder-dump-path). For now, look at the Python stacks of rank 3 (`py-spy dump --pid PID`), and for Xid errors of the GPUs of rank 2 (`dmesg`)."
    )


@pytest.mark.parametrize(
    ("by_two", "last", "culprits"), [("completed", 3, (2,)), ("never called", 2, (3,))]
)
def test_torchs_count_tells_which_if_a_rank_with_the_same_groups_tells_its_number(
    by_two: str, last: int, culprits: tuple[int, ...], tmp_path: Path
) -> None:
    counts = {rank: {"0": 7, "5": 3} for rank in (0, 1, 2)} | {3: {"0": 7, "5": last}}
    answer = answered(tensor_parallel_pairs(by_two=by_two), tmp_path, counts)
    assert answer.culprits == culprits
    assert answer.verdict == (
        "The GPU of rank 2 is stuck in tensor-parallel all_reduce 3, which rank 3 has completed."
        if culprits == (2,)
        else "Rank 3 is in no collective: its CPU is elsewhere, and rank 2 waits for it (first in tensor-parallel all_reduce 3)."
    )


@pytest.mark.parametrize("counts", [{"5": 3}, {"0": 7, "6": 3}])
def test_the_count_of_a_rank_that_called_in_other_groups_is_of_an_unknown_group(
    counts: dict[str, int], tmp_path: Path
) -> None:
    told: dict[int, dict[str, int]] = {rank: {"0": 7, "5": 3} for rank in (0, 1, 2)}
    built = tensor_parallel_pairs(by_two="completed")
    assert answered(built, tmp_path, told | {3: counts}).verdict == BOTH_WAYS


def test_a_json_record_without_calls_is_of_a_rank_with_nothing_pending(tmp_path: Path) -> None:
    built = tensor_parallel_pairs(by_two="completed")
    answer = answered(built, tmp_path, as_json=True)
    assert (answer.verdict, answer.skipped) == (BOTH_WAYS, ())


def test_what_one_rank_has_completed_all_have_called(tmp_path: Path) -> None:
    """Rank 1 waits in its second, so all have called the first, in which rank 0 is stuck."""
    built = RecordBuilder(dp0=[0, 1, 2]).call([0, 1, 2], "dp0", 1, state="completed")
    built.call(0, "dp0", 2).call([1, 2], "dp0", 2, state="completed").call(1, "dp0", 3)
    answer = answered(built, tmp_path)
    assert answer.verdict == (
        "The GPU of rank 0 is stuck in data-parallel all_reduce 2, which ranks 1-2 have completed."
    )


def test_where_many_wait_for_few_it_is_said_which_way_is_likelier(tmp_path: Path) -> None:
    built = RecordBuilder(dp0=[0, 1, 2, 3]).call([0, 1, 2, 3], "dp0", 1, state="completed")
    answer = answered(built.call([0, 1, 2], "dp0", 2), tmp_path)
    assert answer.culprits == ()
    assert answer.verdict == (
        "Rank 3 has nothing pending, and its record does not tell whether it called data-parallel all_reduce 2. Either ranks 0-2 wait for it, whose CPU is elsewhere; or it has completed it, and the GPUs of ranks 0-2 are stuck. The first is likelier: GPUs seldom stick together."
    )


def test_the_end_of_a_transfer_may_be_complete_too(tmp_path: Path) -> None:
    built = RecordBuilder(pp0=[4, 8]).call([4, 8], "pp0", 1, state="completed")
    answer = answered(built.call(4, "pp0", 3, "recv 0<-1"), tmp_path)
    assert answer.verdict == (
        "Rank 8 has nothing pending, and its record does not tell whether it called its part of pipeline recv from 8. Either rank 4 waits for it, whose CPU is elsewhere; or it has completed it, and the GPU of rank 4 is stuck."
    )


def test_a_record_that_does_not_go_back_far_enough_says_which_setting_helps(tmp_path: Path) -> None:
    built = RecordBuilder(tp0=[0, 1], dp0=[0, 1])
    for number in range(1, 9):
        built.call([0, 1], "tp0", number, state="completed")
    built.call(0, "dp0", 2)
    built.entries[1] = built.entries[1][4:]
    answer = hang(built.write(tmp_path))
    assert answer.culprits == ()
    assert "its record does not tell whether it called data-parallel all_reduce 2" in answer.verdict
    assert answer.advice.startswith(
        "The records hold too few complete calls: put `export TORCH_FR_BUFFER_SIZE=20000` into the launch script."
    )
