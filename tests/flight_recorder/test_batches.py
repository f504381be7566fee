# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  (a sentence that users read stands on one line)
"""Sends and receives of a batch, of which torch writes only how far the call is that closes it."""

from __future__ import annotations

from pathlib import Path

from record_builder import RecordBuilder

from megatron.torch_trace.flight_recorder.answer import hang

NO_SIZES: dict[str, list[str]] = {"input_sizes": [], "input_dtypes": [], "output_sizes": []}


def batch(
    built: RecordBuilder,
    rank: int,
    number: int,
    *names: str,
    state: str = "completed",
    group: str = "pp0",
) -> None:
    """`batch_isend_irecv`: the transfers, which stay scheduled, and the call that closes them."""
    for name in names:
        built.call(rank, group, number, name, is_p2p=True)
    built.call(rank, group, 0, "coalesced", state=state, p2p_seq_id=number, **NO_SIZES)


def test_a_batch_that_is_complete_is_nothing_that_a_rank_waits_in(tmp_path: Path) -> None:
    built = RecordBuilder(pp0=[0, 1], tp0=[0, 1])
    for number in (1, 2):
        batch(built, 0, number, "send 0->1", "recv 0<-1")
        batch(built, 1, number, "send 1->0", "recv 1<-0")
    built.call(0, "tp0", 1)
    answer = hang(built.write(tmp_path))
    assert answer.verdict == (
        "Rank 1 is in no collective: its CPU is elsewhere, and rank 0 waits for it (first in tensor-parallel all_reduce 1)."
    )
    assert [(one.state, one.pending) for one in answer.ranks] == [("waiting", 1), ("running", 0)]


def test_batches_are_no_collectives_whose_numbers_match_over_ranks(tmp_path: Path) -> None:
    """Rank 1 closed more batches than rank 2, and all of them have the number 0 of collectives."""
    built = RecordBuilder(pp0=[0, 1, 2])
    batch(built, 0, 1, "send 0->1")
    batch(built, 1, 1, "recv 1<-0")
    batch(built, 1, 2, "send 1->2", state="scheduled")
    answer = hang(built.write(tmp_path))
    assert [(one.rank, one.cause.value, one.waits) for one in answer.blames] == [
        (2, "not_in_a_collective", (1,))
    ]
    assert "(first in pipeline send to 2)" in answer.verdict


def test_a_rank_that_made_its_part_of_a_batch_is_not_waited_for(tmp_path: Path) -> None:
    """Rank 1 has sent to rank 0, which has taken it, and waits for rank 2 alone."""
    built = RecordBuilder(pp0=[0, 1, 2])
    batch(built, 0, 1, "recv 0<-1")
    batch(built, 1, 1, "send 1->0", "recv 1<-2", state="scheduled")
    assert hang(built.write(tmp_path)).culprits == (2,)


def test_a_batch_of_collectives_is_one_collective(tmp_path: Path) -> None:
    built = RecordBuilder(dp0=[0, 1, 2])
    for rank in (0, 1, 2):
        for size in (8, 16):
            built.call(rank, "dp0", 5, size=32 if rank == 2 else size)
        built.call(rank, "dp0", 5, "coalesced", **NO_SIZES)
    answer = hang(built.write(tmp_path))
    assert [(one.words, one.pending) for one in answer.ranks] == [
        ("data-parallel all_reduce 5", 1)
    ] * 3
    assert answer.verdict == (
        "Rank 2 calls data-parallel all_reduce 5 with [32] BFloat16 + [32] BFloat16, where ranks 0-1 call all_reduce [8] BFloat16 + [16] BFloat16."
    )


def test_before_torch_two_four_a_batch_has_no_number_of_its_own(tmp_path: Path) -> None:
    built = RecordBuilder(pp0=[0, 1], tp0=[0, 1])
    batch(built, 0, 1, "send 0->1")
    batch(built, 1, 1, "recv 1<-0")
    built.call(0, "tp0", 1)
    for entries in built.entries.values():
        for entry in entries:
            entry["seq_id"] = entry.pop("collective_seq_id") + 7 * entry.pop("p2p_seq_id")
    answer = hang(built.write(tmp_path))
    assert answer.culprits == (1,)
    assert answer.ranks[1].state == "running"


def test_a_batch_whose_end_is_left_out_as_complete_is_complete(tmp_path: Path) -> None:
    """A record of pending calls alone keeps the transfers, which torch never sees complete."""
    built = RecordBuilder(pp0=[0, 1], tp0=[0, 1])
    for number in (1, 2):
        batch(built, 0, number, "send 0->1", "recv 0<-1")
        batch(built, 1, number, "send 1->0", "recv 1<-0")
    batch(built, 1, 3, "send 1->0")
    built.call([0, 1], "tp0", 1)
    for rank in (0, 1):
        built.entries[rank] = [one for one in built.entries[rank] if one["state"] != "completed"]
    answer = hang(built.write(tmp_path))
    assert [one.words for one in answer.ranks] == ["tensor-parallel all_reduce 1"] * 2
    assert [one.pending for one in answer.ranks] == [1, 1]
