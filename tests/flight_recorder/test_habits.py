# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  (a sentence that users read stands on one line)
"""Two ranks, of which one leaves its usual order of calls: no majority tells which."""

from __future__ import annotations

from pathlib import Path

import pytest
from record_builder import RecordBuilder

from megatron.torch_trace.flight_recorder.answer import hang

TWO = {"tp0": [0, 1], "dp0": [0, 1]}
LAYERS = 4


class TwoRanks:
    """Iterations of reductions of all layers, and of gradients."""

    def __init__(self) -> None:
        self.built = RecordBuilder(**TWO)
        self.sequence = {(rank, group): 0 for rank in (0, 1) for group in TWO}

    def call(self, rank: int, group: str, *, size: int = 4096, state: str = "completed") -> None:
        self.sequence[rank, group] += 1
        self.built.call(rank, group, self.sequence[rank, group], size=size, state=state)

    def healthy(self, iterations: int) -> None:
        for _ in range(iterations):
            for rank in (0, 1):
                for _ in range(LAYERS):
                    self.call(rank, "tp0")
                self.call(rank, "dp0", size=99)


@pytest.mark.parametrize("faulty", [0, 1])
@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("ahead", [False, True])
def test_of_two_ranks_the_one_that_skips_a_reduction_is_named(
    tmp_path: Path, faulty: int, layer: int, ahead: bool
) -> None:
    job, other = TwoRanks(), 1 - faulty
    job.healthy(3)
    for at in range(LAYERS):
        job.call(other, "tp0", state="scheduled" if at == LAYERS - 1 else "completed")
        if at != layer:
            job.call(faulty, "tp0")
    job.call(other, "dp0", size=99, state="scheduled")  # its CPU is ahead
    job.call(faulty, "dp0", size=99, state="scheduled")
    if ahead:  # its CPU has begun the next iteration, in which the number comes again
        job.call(faulty, "tp0", state="scheduled")
        job.call(faulty, "tp0", state="scheduled")
    answer = hang(job.built.write(tmp_path))
    assert answer.culprits == (faulty,)
    assert answer.verdict == (
        f"Rank {faulty} calls data-parallel all_reduce 4 where it usually calls tensor-parallel all_reduce, and rank {other} waits for it."
    )
    assert [one.cause.value for one in answer.blames] == ["left_usual_order"]


def test_most_ranks_tell_who_never_called_before_habits_are_looked_at(tmp_path: Path) -> None:
    built = RecordBuilder(tp0=[0, 1, 2, 3], dp0=[2, 3])
    for number in range(1, 10):
        built.call([0, 1, 2, 3], "tp0", number, state="completed")
        built.call([2, 3], "dp0", number, state="completed")
    built.call([0, 1, 2], "tp0", 10).call(3, "dp0", 10)
    answer = hang(built.write(tmp_path))
    assert [(one.rank, one.cause.value) for one in answer.blames] == [(3, "never_called")]


@pytest.mark.parametrize("faulty", [0, 1])
@pytest.mark.parametrize("state", ["scheduled", "completed"])
def test_of_two_ranks_the_one_with_another_size_is_named(
    tmp_path: Path, faulty: int, state: str
) -> None:
    job, other = TwoRanks(), 1 - faulty
    job.healthy(3)
    job.call(other, "tp0", state="scheduled")
    # What is smaller may be complete for one of the two.
    job.call(faulty, "tp0", size=64, state=state)
    job.call(faulty, "tp0", state="scheduled")
    job.call(other, "tp0", state="scheduled")
    answer = hang(job.built.write(tmp_path))
    assert answer.culprits == (faulty,)
    assert answer.verdict == (
        f"Rank {faulty} calls tensor-parallel all_reduce 13 with [64] BFloat16, where rank {other} calls all_reduce [4096] BFloat16."
    )


@pytest.mark.parametrize("faulty", [0, 1])
def test_a_smaller_collective_that_is_complete_makes_a_later_one_hang(
    tmp_path: Path, faulty: int
) -> None:
    # As NCCL does: what is left of the larger one is taken for the next, until the last lacks some.
    job, other = TwoRanks(), 1 - faulty
    job.healthy(3)
    for at in range(LAYERS):
        job.call(other, "tp0", state="scheduled" if at == LAYERS - 1 else "completed")
        job.call(faulty, "tp0", size=2048 if at == 1 else 4096)
    job.call(faulty, "dp0", size=99, state="scheduled")
    job.call(faulty, "tp0", state="scheduled")
    answer = hang(job.built.write(tmp_path))
    assert answer.culprits == (faulty,)
    assert [one.cause.value for one in answer.blames] == ["different_call"]
    assert answer.verdict.startswith(f"Rank {faulty} calls tensor-parallel all_reduce 14 with")


def test_an_iteration_in_which_both_call_more_than_usual_is_nobodys_fault(tmp_path: Path) -> None:
    job = TwoRanks()
    job.healthy(3)
    for rank in (0, 1):
        job.call(rank, "dp0", size=7, state="scheduled")
    assert hang(job.built.write(tmp_path)).culprits == ()


def test_what_one_rank_alone_called_long_ago_is_not_why_both_wait_now(tmp_path: Path) -> None:
    job = TwoRanks()
    job.healthy(3)
    job.built.groups["ep0"] = [0]  # such as a checkpoint of the first rank
    job.built.call(0, "ep0", 1, "broadcast", state="completed")
    job.healthy(2)
    for rank in (0, 1):
        job.call(rank, "tp0", state="scheduled")
    answer = hang(job.built.write(tmp_path))
    assert answer.culprits == ()
    assert answer.verdict.startswith("All ranks of every pending collective have called it")


def test_two_ranks_that_both_do_what_they_never_did_before_are_both_said(tmp_path: Path) -> None:
    job = TwoRanks()
    job.healthy(3)
    for rank, size in ((0, 64), (1, 128)):
        job.call(rank, "tp0", size=size, state="scheduled")
    answer = hang(job.built.write(tmp_path))
    assert answer.culprits == ()
    assert answer.verdict.endswith("Nothing tells which of them is wrong.")


def test_a_first_iteration_has_no_habit_that_it_could_break(tmp_path: Path) -> None:
    job = TwoRanks()
    job.call(0, "tp0", state="scheduled")
    job.call(1, "dp0", state="scheduled")
    assert hang(job.built.write(tmp_path)).culprits == ()


@pytest.mark.parametrize("faulty", [0, 1])
def test_an_odd_call_that_both_have_made_in_groups_of_their_own_is_nobodys_fault(
    tmp_path: Path, faulty: int
) -> None:
    # Data parallel 1: each rank has a group of its own, and both reduce gradients differently once.
    built = RecordBuilder(tp0=[0, 1], dp0=[0], dp1=[1])
    for iteration in range(6):
        for rank in (0, 1):
            for layer in range(LAYERS):
                built.call(rank, "tp0", iteration * LAYERS + layer + 1, state="completed")
            odd = "allreduce_coalesced" if iteration == 2 else "all_reduce"
            built.call(rank, f"dp{rank}", iteration + 1, odd, size=99, state="completed")
    for rank in (0, 1):
        built.call(rank, "tp0", 25, size=2048 if rank == faulty else 4096)
    answer = hang(built.write(tmp_path))
    assert answer.culprits == (faulty,)
    assert answer.verdict == (
        f"Rank {faulty} calls tensor-parallel all_reduce 25 with [2048] BFloat16, where rank {1 - faulty} calls all_reduce [4096] BFloat16."
    )


def test_two_ranks_that_differ_are_both_said_where_no_habit_tells_which_is_wrong(
    tmp_path: Path,
) -> None:
    job = TwoRanks()
    job.call(0, "tp0", state="scheduled")
    job.call(1, "tp0", size=64, state="scheduled")
    answer = hang(job.built.write(tmp_path))
    assert answer.culprits == ()
    assert answer.verdict == (
        "Ranks 0-1 call tensor-parallel all_reduce 1 differently: rank 0 all_reduce with [4096] BFloat16; rank 1 all_reduce with [64] BFloat16. Nothing tells which of them is wrong."
    )
