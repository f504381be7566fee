# SPDX-License-Identifier: Apache-2.0
"""Faults of known size in hand-built ranks: `analyze` names the rank and the span, and its gain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from machine import Act, Machine, cpu, mark, reduce, run, sync

from megatron import torch_trace

TURNS = 8


def programs(rank: int, turns: Sequence[int], sleep: int) -> dict[int, list[Act]]:
    """Four ranks whose CPUs differ by some us everywhere; one of them sleeps in some turns."""
    return {
        one: [
            act
            for turn in range(TURNS)
            for act in (
                cpu(200_000 + 1_500 * one + (sleep if one == rank and turn in turns else 0)),
                run("gemm", 50_000),
                reduce(8_000),
                sync(),
            )
        ]
        for one in range(4)
    }


@pytest.mark.parametrize("sleep", [60_000, 400_000])
@pytest.mark.parametrize("turns", [[2], list(range(TURNS)), [0, 5, 7]], ids=["once", "all", "some"])
@pytest.mark.parametrize("rank", range(4))
def test_the_rank_and_the_gain_of_a_fault_are_right(
    rank: int, turns: Sequence[int], sleep: int, tmp_path: Path
) -> None:
    faulty, healthy = Machine(programs(rank, turns, sleep)), Machine(programs(rank, (), 0))
    analysis = torch_trace.analyze(faulty.record(tmp_path), gains=True)
    found = [one for one in analysis.findings if one.code == "straggler"]
    (cause,) = found[0].evidence["causes"]
    assert (cause["rank"], cause["count"]) == (rank, len(turns))
    grown = faulty.iteration_ns - healthy.iteration_ns
    assert found[0].gain_ns == pytest.approx(grown, rel=0.1)
    assert found[0].sure_gain_ns


def two_steps(rank: int, *, busy: int = 0) -> dict[int, list[Act]]:
    """Twice the same step, in which rank 2 sleeps for 400 us once, and rank 1 is always late."""
    step = [
        act
        for turn in range(TURNS)
        for act in (
            cpu(200_000 + 400_000 * (rank == 2 and turn == 4) + busy * (rank == 1)),
            run("gemm", 50_000),
            reduce(8_000),
            *([] if busy else [sync()]),
        )
    ]
    return {rank: [*step, sync(), mark(), *step, sync()]}


@pytest.mark.parametrize("busy", [0, 60_000])
def test_what_a_fault_takes_is_told_for_one_of_several_iterations(
    busy: int, tmp_path: Path
) -> None:
    """Also where another rank is last, and the sleep is hidden behind it."""
    ranks = {rank: one for each in range(4) for rank, one in two_steps(each, busy=busy).items()}
    analysis = torch_trace.analyze(Machine(ranks).record(tmp_path), gains=True)
    stragglers = [one for one in analysis.findings if one.code == "straggler"]
    (found,) = (one for one in stragglers if one.change == "--rank 2=median")
    (cause,) = found.evidence["causes"]
    assert (cause["rank"], cause["count"], cause["time_ns"]) == (2, 2, 800_000)
    assert "0.4 ms longer than" in found.title
    assert " in 1 stretch of the training loop's thread outside of all spans." in found.title
    assert found.evidence["more_ns"] == 400_000


def test_beside_a_fault_the_luck_of_one_of_two_ranks_is_no_part_of_it(tmp_path: Path) -> None:
    """One peer tells luck by one number, which the other rank's luck exceeds now and then."""

    def machine(sleep: int) -> Machine:
        late = {1: 60_000, 4: 45_000, 5: sleep, 6: 70_000}
        return Machine(
            {
                rank: [
                    act
                    for turn in range(TURNS)
                    for act in (
                        cpu(200_000 + (late.get(turn, 0) if rank else 20_000 * (turn == 2))),
                        run("gemm", 50_000),
                        reduce(8_000),
                        sync(),
                    )
                ]
                for rank in range(2)
            }
        )

    analysis = torch_trace.analyze(machine(400_000).record(tmp_path), gains=True)
    found = next(one for one in analysis.findings if one.evidence.get("causes"))
    (cause,) = found.evidence["causes"]
    assert (cause["rank"], cause["count"], found.gain_ns) == (1, 1, 400_000)


def test_of_two_ranks_the_error_knows_by_how_much_the_other_one_is_late(tmp_path: Path) -> None:
    """Behind the fault another rank is late, too; by how much may be luck of the window."""
    turns = {
        rank: [
            act
            for turn in range(TURNS)
            for act in (
                cpu(200_000 + (400_000 * (turn == 5) if rank else 25_000)),
                run("gemm", 50_000),
                reduce(8_000),
                sync(),
            )
        ]
        for rank in range(2)
    }
    (mended,) = torch_trace.whatif(Machine(turns).record(tmp_path), rank="1=median").candidates
    assert mended.gain_ns == 375_000
    assert mended.error.ranks is not None
    assert mended.error.ranks >= (TURNS - 1) * 25_000
