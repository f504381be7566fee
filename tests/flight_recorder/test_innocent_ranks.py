# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  (a sentence that users read stands on one line)
"""Ranks that only come late because of others are at fault for nothing."""

from __future__ import annotations

import pickle
from pathlib import Path

from hang_run import IN_THE_LOADER, WAITS, Run, write_flights
from record_builder import RecordBuilder

from megatron.torch_trace.flight_recorder.answer import hang


def test_a_broadcast_that_its_root_has_completed_shows_no_stuck_gpu(tmp_path: Path) -> None:
    """The data come to rank 2 by rank 1, which is elsewhere."""
    built = RecordBuilder(tp0=[0, 1, 2]).call(0, "tp0", 4, "broadcast", state="completed")
    built.call(2, "tp0", 4, "broadcast")
    answer = hang(built.write(tmp_path))
    assert [(one.rank, one.cause.value) for one in answer.blames] == [(1, "not_in_a_collective")]


def test_a_rank_that_waits_for_the_network_did_not_skip_what_it_has_not_come_to(
    tmp_path: Path,
) -> None:
    """The pair 2, 3 does not finish, so rank 3 has not come to the collective of all four."""
    built = RecordBuilder(mp0=[0, 1, 2, 3], dp0=[2, 3]).call([2, 3], "dp0", 4)
    built.call([0, 1, 2], "mp0", 6)
    answer = hang(built.write(tmp_path))
    assert (answer.culprits, answer.verdict) == (
        (),
        "All ranks of data-parallel all_reduce 4 have called it, with the same sizes: the network or a GPU does not finish it, and other ranks wait for these.",
    )
    assert answer.advice.startswith("Look for errors of the network and of GPUs")


def test_of_two_in_a_circle_the_one_whose_order_is_not_that_of_the_others_is_named(
    tmp_path: Path,
) -> None:
    """Rank 2 went to the collective of all without the one of its pair, in which rank 3 waits."""
    built = RecordBuilder(ep0=[*range(6)], tp0=[0, 1], tp1=[2, 3], tp2=[4, 5])
    for pair, group in (([0, 1], "tp0"), ([4, 5], "tp2")):
        built.call(pair, group, 23, state="completed")
    built.call(3, "tp1", 23).call([0, 1, 2, 4, 5], "ep0", 11)
    answer = hang(built.write(tmp_path))
    assert [(one.rank, one.cause.value, one.waits) for one in answer.blames] == [
        (2, "never_called", (3,))
    ]
    assert answer.verdict == (
        "Rank 2 never called tensor-parallel all_reduce 23, in which rank 3 waits."
    )


def test_a_circle_in_which_nothing_tells_who_is_wrong_is_said(tmp_path: Path) -> None:
    built = RecordBuilder(tp0=[0, 1], dp0=[0, 1]).call(0, "tp0", 5).call(1, "dp0", 2)
    answer = hang(built.write(tmp_path))
    assert (answer.culprits, answer.advice) == ((), "")
    assert answer.verdict == (
        "Ranks wait for each other in a circle, and nothing tells which of them left the order of calls: rank 0 waits in tensor-parallel all_reduce 5, which rank 1 has not called; rank 1 waits in data-parallel all_reduce 2, which rank 0 has not called."
    )


def test_who_waits_in_a_transfer_for_the_rank_that_skipped_is_not_named_beside_it(
    tmp_path: Path,
) -> None:
    built = RecordBuilder(ep0=[0, 1, 2], mp0=[2, 3, 4, 5], pp0=[0, 3])
    built.call([0, 1], "ep0", 10).call([2, 4, 5], "mp0", 2).call(3, "pp0", 1, "recv 1<-0")
    answer = hang(built.write(tmp_path))
    assert [(one.rank, one.cause.value) for one in answer.blames] == [(2, "never_called")]


def test_pending_calls_that_newer_ones_pushed_out_are_not_complete(tmp_path: Path) -> None:
    """The buffer of rank 0 begins with its fifth call, and its first four are pending, too."""
    built = RecordBuilder(dp0=[0, 1, 2]).call(1, "dp0", 1, state="completed")
    for number in range(2, 9):
        built.call([0, 1], "dp0", number)
    built.call(0, "dp0", 9)
    built.entries[0] = built.entries[0][4:]
    assert hang(built.write(tmp_path)).culprits == (2,)


def test_what_follows_on_the_second_iteration_alone_is_no_habit_that_a_rank_left(
    tmp_path: Path,
) -> None:
    """Rank 1 has left out a call of its pair with rank 3, which waits; rank 0 merely came further."""
    built = RecordBuilder(tp0=[0, 1], dp0=[0, 2], dp1=[1, 3], mp0=[0, 1, 2, 3])
    for iteration in (1, 2):
        for number in range(3 * iteration - 2, 3 * iteration + 1):
            built.call([0, 1], "tp0", number, state="completed")
        built.call([0, 2], "dp0", iteration, state="completed")
        if iteration == 1:
            built.call([1, 3], "dp1", 1, state="completed")
    built.call(3, "dp1", 2).call(1, "mp0", 1, state="started").call(0, "mp0", 1)
    assert 0 not in hang(built.write(tmp_path)).culprits


def test_groups_that_nobody_described_are_told_apart_by_their_names(tmp_path: Path) -> None:
    """torch calls all of them undefined."""
    built = RecordBuilder(a0=[0, 1], b0=[0, 1]).call(0, "a0", 3)
    for entries in built.entries.values():
        for entry in entries:
            entry["process_group"] = (entry["process_group"][0], "undefined")
    built.write(tmp_path)
    assert hang(tmp_path).verdict == (
        "Rank 1 is in no collective: its CPU is elsewhere, and rank 0 waits for it (first in group a0 all_reduce 3)."
    )


def test_a_record_that_is_cut_in_its_last_call_is_read_up_to_it(tmp_path: Path) -> None:
    built = RecordBuilder(dp0=[0, 1, 2]).call([0, 1, 2], "dp0", 1, state="completed")
    built.call([0, 1, 2], "dp0", 2).write(tmp_path)
    cut = tmp_path / "comm_lib_trace_rank_1"
    whole = pickle.dumps(built.record(1), 2)
    cut.write_bytes(whole[: whole.rindex(b"time_created_ns") + 30])
    answer = hang(tmp_path)
    assert (answer.culprits, answer.damaged) == ((), (cut,))


def test_a_record_that_is_cut_before_its_calls_is_damaged_and_not_missing(tmp_path: Path) -> None:
    built = RecordBuilder(dp0=[0, 1]).call([0, 1], "dp0", 2).write(tmp_path)
    cut = built / "comm_lib_trace_rank_1"
    whole = cut.read_bytes()
    cut.write_bytes(whole[: whole.index(b"entries") - 5])
    answer = hang(tmp_path)
    assert (answer.culprits, answer.damaged) == ((), (cut,))


def test_where_nothing_is_pending_a_rank_without_a_record_may_be_at_fault(tmp_path: Path) -> None:
    built = RecordBuilder(tp0=[0, 1]).call([0, 1], "tp0", 3, state="completed")
    assert hang(built.write(tmp_path, without=1)).verdict == (
        "Nothing is pending on the ranks that have left a record. Rank 1 has left none, and may be at fault."
    )


def test_a_rank_whose_cpu_is_ahead_of_what_all_have_called_is_not_waited_for(
    tmp_path: Path,
) -> None:
    """Its CPU prepares the next batch while its GPU waits for the network, as those of all do."""
    run = Run(tmp_path)
    paths = {rank: run.rank(rank, IN_THE_LOADER if rank == 2 else WAITS) for rank in range(4)}
    write_flights(RecordBuilder(tp0=[0, 1, 2, 3]).call([0, 1, 2, 3], "tp0", 5), paths)
    answer = hang(tmp_path)
    assert answer.culprits == ()
    assert answer.verdict.startswith("All ranks of every pending collective have called it")
