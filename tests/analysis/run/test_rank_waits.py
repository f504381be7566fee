# SPDX-License-Identifier: Apache-2.0
"""What only other ranks can tell, put into a rank's own table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from kept_windows import window_of_two

from megatron.torch_trace.analysis.communication.collectives import CollectiveKind
from megatron.torch_trace.analysis.communication.rank_calls import RankCalls
from megatron.torch_trace.analysis.communication.stragglers import RankWaits
from megatron.torch_trace.analysis.communication.totals import CommunicationRow
from megatron.torch_trace.analysis.run.rank import analyse_rank
from megatron.torch_trace.analysis.run.rank_waits import WaitingRanks
from megatron.torch_trace.columns.intervals import ints

KIND, BYTES = ints([0, 1, 0, 2]), ints([100, 1_000, 300, 7])
WAITS = RankWaits(np.array([True, True, True, False]), ints([5, 0, 10, 0]), ints([20, 50, 30, 9]))


def row(collective: str, size: int) -> CommunicationRow:
    return CommunicationRow(
        dimension="tp",
        group="tp",
        collective=collective,
        calls=1,
        time_ns=60,
        exposed_ns=60,
        wait_ns=None,
        share=0.1,
        bytes=size,
        algbw_gbps=1.0,
        busbw_gbps=1.0,
        bandwidth_time_ns=60,
    )


def calls(collectives: tuple[str, ...], ranks: int = 2) -> RankCalls:
    kinds = tuple(CollectiveKind("tp", "tp", "tp", one, ranks) for one in collectives)
    return RankCalls(KIND, KIND, KIND, kinds, KIND, BYTES, BYTES, KIND)


def test_ranks_with_the_same_columns_get_the_waits_of_their_own_lines(tmp_path: Path) -> None:
    # The same numbers stand for other collectives, in tables of another order.
    result = analyse_rank(window_of_two(tmp_path) / "rank-0.pt.trace.json").result
    reduce, gather, alone = row("allreduce", 400), row("allgather", 1_000), row("barrier", 7)
    waiting = WaitingRanks()

    def told(table: list[CommunicationRow], own: RankCalls) -> list[tuple[object, ...]]:
        found = waiting.with_waits(replace(result, communication=tuple(table)), own, WAITS)
        assert found.wait_ns == 15
        return [
            (one.collective, one.wait_ns, one.algbw_gbps, one.busbw_gbps, one.bandwidth_time_ns)
            for one in found.communication
        ]

    first = told([reduce, gather, alone], calls(("allreduce", "allgather", "barrier")))
    assert first == [
        ("allreduce", 15, 400 / 50, 400 / 50, 50),
        ("allgather", 0, 1_000 / 50, 500 / 50, 50),
        ("barrier", None, 1.0, 1.0, 60),
    ]
    assert (
        told([alone, gather, reduce], calls(("allreduce", "allgather", "barrier"))) == first[::-1]
    )
    assert told([gather, reduce], calls(("allgather", "allreduce", "barrier"), ranks=4)) == [
        ("allgather", 15, 1_000 / 50, 300 / 50, 50),
        ("allreduce", 0, 400 / 50, 1_500 / 50, 50),
    ]


def test_a_rank_without_collectives_waits_for_nobody(tmp_path: Path) -> None:
    result = analyse_rank(window_of_two(tmp_path) / "rank-0.pt.trace.json").result
    none = ints([])
    own = RankCalls(none, none, none, (), none, none, none, none)
    found = WaitingRanks().with_waits(result, own, RankWaits(none.astype(bool), none, none))
    assert (found.communication, found.wait_ns) == (result.communication, 0)
