# SPDX-License-Identifier: Apache-2.0
"""Who is late, against every pair of calls of every pair of ranks looked at one by one.

Calls begin when hypothesis says so and, as collectives do, end together in true time; each rank has
a clock of its own, and a trace may lack calls.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from trace_builder import NCCL, TraceBuilder, collective_args

from megatron.torch_trace.analysis.communication.collectives import attribute
from megatron.torch_trace.analysis.communication.matching import match
from megatron.torch_trace.analysis.communication.rank_calls import RankCalls, rank_calls
from megatron.torch_trace.analysis.communication.stragglers import Waits, find_stragglers, waits_of

US = 1_000
NOISE = 20 * US
RANKS = 4
GROUPS = {"dp": ((0, 1, 2, 3),), "tp": ((0, 1), (2, 3)), "ep": ((0,), (1,), (2,), (3,))}
TOGETHER = ("allreduce", "all_to_allv", "_reduce_scatter_base", "barrier")
"""Collectives in which nobody can go before all have come."""


class Call(NamedTuple):
    """The same call on all ranks of a group.

    Args:
        dimension, name: of `GROUPS`, and as torch writes it.
        early: for each rank of the job, us before the end that it begins; 0 is never.
        missing: ranks whose traces do not have it.
    """

    dimension: str
    name: str
    early: tuple[int, ...]
    missing: frozenset[int]


calls = st.lists(
    st.builds(
        Call,
        dimension=st.sampled_from(sorted(GROUPS)),
        name=st.sampled_from([*TOGETHER, "broadcast", "send"]),
        early=st.tuples(*[st.integers(1, 90)] * RANKS),
        missing=st.frozensets(st.integers(0, RANKS - 1), max_size=2),
    ),
    max_size=8,
)
clocks = st.tuples(*[st.integers(-300, 300)] * RANKS)


def group_of(dimension: str, rank: int) -> tuple[int, ...]:
    return next(group for group in GROUPS[dimension] if rank in group)


def recorded(made: list[Call], apart: tuple[int, ...], *, numbered: bool) -> dict[int, RankCalls]:
    """What each rank's trace has of `made`; a call a millisecond, ends on the millisecond."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(RANKS):
            groups = [
                {"pg_name": name, "pg_desc": "", "ranks": list(group_of(name, rank))}
                for name in GROUPS
            ]
            trace = TraceBuilder(rank, RANKS, groups=groups, clock=(1_000 + apart[rank]) * US)
            trace.step(1, 0, (len(made) + 2) * 1000 * US)
            for number, call in enumerate(made, 1):
                if rank in call.missing:
                    continue
                size = len(group_of(call.dimension, rank))
                # All-to-all: every rank another amount.
                nelems = 100 + number + (rank if call.name == "all_to_allv" else 0)
                args: dict[str, Any] = collective_args(
                    call.name, call.dimension, nelems=nelems, size=size
                )
                if numbered:
                    args["Seq"] = number
                end = number * 1000 * US
                start = end - call.early[rank] * US
                trace.gpu(NCCL, start, end, launch=start - 5 * US, args=args)
            timeline = trace.timeline(Path(folder) / str(rank))
            found[rank] = rank_calls(timeline, attribute(timeline))
    return found


def waiting(made: list[Call]) -> dict[int, tuple[list[int], int, int, int]]:
    """By rank: the wait in each of its calls, how often it is last of how many, what it imposed."""
    found: dict[int, tuple[list[int], int, int, int]] = {}
    for rank in range(RANKS):
        waits, last, counted, imposed = [], 0, 0, 0
        for call in made:
            if rank in call.missing:
                continue
            there = [one for one in group_of(call.dimension, rank) if one not in call.missing]
            shortest = min(call.early[one] for one in there)
            if call.name not in TOGETHER or len(there) < 2:
                waits.append(0)
                continue
            waits.append((call.early[rank] - shortest) * US)
            if (max(call.early[one] for one in there) - shortest) * US > NOISE:
                counted += 1
                if call.early[rank] == shortest:
                    last += 1
                    imposed += sum((call.early[one] - shortest) * US for one in there)
        found[rank] = (waits, last, counted, imposed)
    return found


def measured(ranks: dict[int, RankCalls]) -> dict[int, tuple[list[int], int, int, int]]:
    """The same as the analysis has it; a rank that it leaves out was never last."""
    matched = match(ranks)
    waits: Waits = find_stragglers(matched)
    late = {
        one.rank: (one.last_arrivals, one.calls, one.imposed_wait_ns) for one in waits.stragglers
    }
    found = {}
    for rank, one in ranks.items():
        own = (
            waits_of(matched, waits, rank, one.end - one.start).wait.tolist()
            if len(one.start)
            else []
        )
        found[rank] = (own, *late.get(rank, (0, 0, 0)))
    return found


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(calls, clocks)
@example([Call("tp", "allreduce", (50, 90, 9, 9), frozenset())], (0, 300, 0, 0))
@example(
    # Ranks 0 and 1 share three calls, as 2 and 3 do, but only two with each other.
    [
        Call("dp", "allreduce", (1, 1, 1, 1), frozenset()),
        Call("dp", "allreduce", (1, 1, 1, 22), frozenset()),
        Call("tp", "allreduce", (1, 1, 1, 1), frozenset()),
    ],
    (0, 0, 14, 0),
)
@example([Call("dp", "allreduce", (60, 60, 10, 10), frozenset({1}))] * 3, (0, 300, -300, 9))
def test_waits_and_last_arrivals_are_those_of_true_time(
    made: list[Call], apart: tuple[int, ...]
) -> None:
    assert measured(recorded(made, apart, numbered=True)) == waiting(made)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(calls.map(lambda made: [call._replace(missing=frozenset()) for call in made]), clocks)
def test_without_numbers_the_order_of_the_calls_tells_which_is_the_same(
    made: list[Call], apart: tuple[int, ...]
) -> None:
    assert measured(recorded(made, apart, numbered=False)) == waiting(made)


def test_a_trace_that_begins_later_is_shifted_although_all_to_alls_differ_in_size() -> None:
    made = [
        Call("dp", name, (50 + number, 10, 10, 10), frozenset({1} if number < 2 else ()))
        for number, name in enumerate(("all_to_allv", "allreduce") * 4)
    ]
    assert measured(recorded(made, (0, 0, 0, 0), numbered=False)) == waiting(made)
