# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path
from typing import Any

from trace_builder import NCCL, TraceBuilder, collective_args

from megatron.torch_trace.analysis.communication.clocks import Clock
from megatron.torch_trace.analysis.communication.collectives import attribute
from megatron.torch_trace.analysis.communication.matching import MatchedCalls, match
from megatron.torch_trace.analysis.communication.rank_calls import RankCalls, rank_calls
from megatron.torch_trace.analysis.communication.stragglers import (
    Straggler,
    find_stragglers,
    waits_of,
)

US = 1000
LATE = 500 * US
"""How much later the late rank enters than the others."""


def calls(builder: TraceBuilder, folder: Path) -> RankCalls:
    timeline = builder.timeline(folder)
    return rank_calls(timeline, attribute(timeline))


def ranks(
    folder: Path, late: list[int], count: int = 3, clocks: tuple[int, ...] = (), **more: Any
) -> dict[int, RankCalls]:
    """`count` ranks that meet in one call for each entry of `late`, which says who comes last.

    A call takes 10 us; who is not late enters 500 us before that.
    """
    found = {}
    for rank in range(count):
        clock = clocks[rank] if clocks else 0
        trace = TraceBuilder(rank, count, clock=clock).step(1, 0, len(late) * 1000 * US)
        for number, last in enumerate(late):
            end = (number + 1) * 1000 * US - 100 * US
            start = end - 10 * US - (0 if rank == last else LATE)
            trace.collective(start, end, size=count, **more)
        found[rank] = calls(trace, folder / str(rank))
    return found


def test_who_arrives_last_imposes_the_wait_of_all_others(tmp_path: Path) -> None:
    waits = find_stragglers(match(ranks(tmp_path, late=[2, 2, 0])))
    assert waits.matched_calls == 3
    assert waits.stragglers == (
        Straggler(2, 3, 2, 4 * LATE, 2 * LATE, LATE, "dp", "allreduce", 3, 2 / 3),
        Straggler(0, 3, 1, 2 * LATE, LATE, 2 * LATE, "dp", "allreduce", 3, 1 / 3),
        Straggler(1, 3, 0, 0, 0, 3 * LATE, None, None, 0, None),
    )


def test_clocks_that_differ_change_nothing_and_are_stated(tmp_path: Path) -> None:
    apart = find_stragglers(match(ranks(tmp_path, [2, 2, 0], clocks=(0, 7_000_000, -3_000_000))))
    together = find_stragglers(match(ranks(tmp_path / "same", [2, 2, 0])))
    assert apart.stragglers == together.stragglers
    assert apart.clocks == (
        Clock(0, 0, 0, 3, reference=0),
        Clock(1, -7_000_000, 0, 3, reference=0),
        Clock(2, 3_000_000, 0, 3, reference=0),
    )


def test_two_calls_in_common_tell_nothing_of_the_clocks(tmp_path: Path) -> None:
    waits = find_stragglers(match(ranks(tmp_path, [2, 0], clocks=(0, 7_000, 0))))
    assert [clock.offset_ns for clock in waits.clocks] == [None] * 3


def test_ranks_that_share_no_group_with_the_lowest_have_a_clock_of_their_own(
    tmp_path: Path,
) -> None:
    found = {}
    for rank, group, clock in ((0, 0, 0), (1, 0, 500), (2, 2, 9_000), (3, 2, 2_000), (4, 4, 0)):
        members = [group, group + 1]
        groups = [{"pg_name": "dp", "pg_desc": "DATA_PARALLEL_GROUP_WITH_CP", "ranks": members}]
        trace = TraceBuilder(rank, 5, groups=groups, clock=clock).step(1, 0, 10_000_000)
        for number in range(1, 4):
            trace.collective(number * 1_000_000, number * 1_000_000 + 9_000)
        found[rank] = calls(trace, tmp_path / str(rank))
    assert find_stragglers(match(found)).clocks == (
        Clock(0, 0, 0, 3, reference=0),
        Clock(1, -500, 0, 3, reference=0),
        Clock(2, 0, 0, 3, reference=2),
        Clock(3, 7_000, 0, 3, reference=2),
        Clock(4, None, None, 0, reference=4),
    )


def test_ranks_are_aligned_through_ranks_in_between(tmp_path: Path) -> None:
    found = {}
    for rank, clock in ((0, 0), (1, 100), (2, 300)):
        trace = TraceBuilder(rank, 3, clock=clock).step(1, 0, 10_000_000)
        for number in range(1, 4):
            for dimension in {0: ["tp"], 1: ["tp", "dp"], 2: ["dp"]}[rank]:
                at = number * 1_000_000 + (500_000 if dimension == "dp" else 0)
                trace.collective(at, at + 9_000, dimension=dimension)
        found[rank] = calls(trace, tmp_path / str(rank))
    assert [clock.offset_ns for clock in find_stragglers(match(found)).clocks] == [0, -100, -300]


def test_clocks_of_days_apart_are_aligned_to_the_nanosecond(tmp_path: Path) -> None:
    far = 91 * 86_400 * 10**9 + 1
    found = ranks(tmp_path, [0, 1, 0], count=2, clocks=(0, far))
    assert [clock.offset_ns for clock in find_stragglers(match(found)).clocks] == [0, -far]


def test_the_error_of_the_clocks_is_how_far_ends_are_apart(tmp_path: Path) -> None:
    found = {}
    for rank, shifts in ((0, (0, 0, 0)), (1, (5000, 5000, 5800))):
        trace = TraceBuilder(rank, 2).step(1, 0, 10_000_000)
        for number, shift in enumerate(shifts):
            trace.collective(1_000_000 * (number + 1), 1_000_000 * (number + 1) + 9000 + shift)
        found[rank] = calls(trace, tmp_path / str(rank))
    clocks = find_stragglers(match(found)).clocks
    # The median difference is 5000; the third end is 800 off that, 400 from the middle of both.
    assert [clock.offset_ns for clock in clocks] == [0, -5000]
    assert [clock.error_ns for clock in clocks] == [0, 0]


def test_arrivals_closer_than_the_noise_blame_nobody(tmp_path: Path) -> None:
    found = {}
    for rank, early in ((0, 0), (1, 5 * US)):
        trace = TraceBuilder(rank, 2).step(1, 0, 10_000 * US)
        for number in range(1, 4):
            trace.collective(number * 1000 * US - early, number * 1000 * US + 10 * US)
        found[rank] = calls(trace, tmp_path / str(rank))
    assert [s.last_arrivals for s in find_stragglers(match(found)).stragglers] == [0, 0]


def test_a_bad_clock_hides_nobody_in_other_groups(tmp_path: Path) -> None:
    found = {}
    for rank, group, late, jitter in ((0, 0, 0, 0), (1, 0, LATE, 0), (2, 2, 0, 0), (3, 2, 0, 900)):
        groups = [
            {"pg_name": "dp", "pg_desc": "DATA_PARALLEL_GROUP_WITH_CP", "ranks": [group, group + 1]}
        ]
        trace = TraceBuilder(rank, 4, groups=groups).step(1, 0, 100_000 * US)
        for number in range(1, 8):
            at = number * 10_000 * US
            off = jitter * US * (number % 3)
            trace.collective(at - 2 * LATE + late + off, at + off)
        found[rank] = calls(trace, tmp_path / str(rank))
    waits = find_stragglers(match(found))
    assert max(clock.error_ns or 0 for clock in waits.clocks) > LATE / 3
    assert {one.rank: one.last_arrivals for one in waits.stragglers} == {0: 0, 1: 7, 2: 0, 3: 0}


def test_where_one_clock_of_a_call_is_bad_nobody_in_it_is_called_late(tmp_path: Path) -> None:
    found = {}
    for rank, late, jitter in ((0, 0, 0), (1, LATE, 0), (2, 0, 900)):
        trace = TraceBuilder(rank, 3).step(1, 0, 100_000 * US)
        for number in range(1, 8):
            at, off = number * 10_000 * US, jitter * US * (number % 3)
            trace.collective(at - 2 * LATE + late + off, at + off, size=3)
        found[rank] = calls(trace, tmp_path / str(rank))
    waits = find_stragglers(match(found))
    assert [clock.error_ns for clock in waits.clocks] == [0, 0, 900 * US]
    assert [one.last_arrivals for one in waits.stragglers] == [0, 0, 0]


def test_missing_ranks_are_no_reason_to_stop(tmp_path: Path) -> None:
    found = ranks(tmp_path, late=[2, 2, 0])
    del found[1]
    waits = find_stragglers(match(found))
    assert [(s.rank, s.last_arrivals, s.imposed_wait_ns) for s in waits.stragglers] == [
        (2, 2, 2 * LATE),
        (0, 1, LATE),
    ]


def test_a_single_rank_has_nobody_to_wait_for(tmp_path: Path) -> None:
    found = ranks(tmp_path, late=[0, 0, 0])
    waits = find_stragglers(match({0: found[0]}))
    assert (waits.stragglers, waits.matched_calls) == ((), 0)
    assert waits.clocks == (Clock(0, None, None, 0, reference=0),)


def test_calls_are_matched_by_sequence_number_where_there_is_one(tmp_path: Path) -> None:
    found = {}
    for rank, numbers in ((0, (7, 8, 9)), (1, (8, 9, 10))):
        trace = TraceBuilder(rank, 2).step(1, 0, 10_000)
        for position, seq in enumerate(numbers):
            trace.collective(1000 * position + 20, 1000 * position + 30 + seq, seq=seq)
        found[rank] = calls(trace, tmp_path / str(rank))
    matched = match(found)
    assert pairs(matched) == [(1, 0), (2, 1)]


def test_a_trace_that_begins_two_calls_later_is_shifted_until_messages_agree(
    tmp_path: Path,
) -> None:
    found = {}
    for rank, sizes in ((0, (10, 20, 30, 40, 50)), (1, (30, 40, 50))):
        trace = TraceBuilder(rank, 2).step(1, 0, 10_000)
        for position, size in enumerate(sizes):
            trace.collective(1000 * position + 20, 1000 * position + 40, nelems=size)
        found[rank] = calls(trace, tmp_path / str(rank))
    assert pairs(match(found)) == [(2, 0), (3, 1), (4, 2)]


def pairs(matched: MatchedCalls) -> list[tuple[int, ...]]:
    """For each call the rows of the ranks that have it."""
    found: dict[int, list[int]] = {}
    for call, row in zip(matched.call.tolist(), matched.row.tolist(), strict=True):
        found.setdefault(call, []).append(row)
    return [tuple(rows) for rows in found.values()]


def test_a_list_of_ranks_that_kineto_cut_is_taken_from_the_configuration(tmp_path: Path) -> None:
    members = list(range(64))
    groups = [{"pg_name": "dp", "pg_desc": "DATA_PARALLEL_GROUP_WITH_CP", "ranks": members}]
    found = {}
    for rank in (0, 40):
        # What the kernels say differs: each shows another part of the list.
        args = collective_args("allreduce", "dp", size=64)
        args["Process Group Ranks"] = f"[{rank}, 1, 2, ...]"
        trace = TraceBuilder(rank, 64, groups=groups).step(1, 0, 1000)
        trace.gpu(NCCL, 20, 40, launch=10, args=args)
        found[rank] = calls(trace, tmp_path / str(rank))
    assert len(match(found)) == 2


def test_groups_of_the_same_name_with_other_members_are_not_mixed(tmp_path: Path) -> None:
    found = {}
    for rank, members in ((0, [0, 1]), (2, [2, 3])):
        groups = [{"pg_name": "tp", "pg_desc": "TENSOR_MODEL_PARALLEL_GROUP", "ranks": members}]
        trace = TraceBuilder(rank, 4, groups=groups).step(1, 0, 1000)
        trace.collective(20, 40, dimension="tp")
        found[rank] = calls(trace, tmp_path / str(rank))
    assert len(match(found)) == 0


def test_sends_and_receives_are_not_matched(tmp_path: Path) -> None:
    found = ranks(tmp_path, late=[0, 1], count=2, dimension="pp", name="send")
    assert len(match(found)) == 0


def test_the_wait_of_each_call_is_its_time_beyond_the_shortest(tmp_path: Path) -> None:
    found = ranks(tmp_path, late=[2, 0])
    matched = match(found)
    waits = find_stragglers(matched)
    for rank, expected in ((0, [LATE, 0]), (2, [0, LATE])):
        own = waits_of(matched, waits, rank, found[rank].end - found[rank].start)
        assert own.matched.tolist() == [True, True]
        assert own.wait.tolist() == expected
        assert own.shortest.tolist() == [10 * US, 10 * US]


def test_a_broadcast_does_not_end_together_and_imposes_no_wait(tmp_path: Path) -> None:
    waits = find_stragglers(match(ranks(tmp_path, late=[0, 0, 0], name="broadcast")))
    assert waits.wait.sum() == 0
    assert waits.stragglers == ()
