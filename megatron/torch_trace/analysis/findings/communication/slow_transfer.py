# SPDX-License-Identifier: Apache-2.0
"""Exposed communication that is slower than any link that GPUs are given for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from megatron.torch_trace.analysis.communication.totals import CommunicationRow
from megatron.torch_trace.analysis.findings.communication.call_names import calls_of
from megatron.torch_trace.analysis.results.analysis import RankResult
from megatron.torch_trace.wording import number, size

_LEAST_BYTES = 16 << 20
"""Of a call, on average: smaller ones are as long as their latency, whatever the link."""
_SLOW_GBPS = 10.0
"""Bus bandwidth that one card of 100 Gb/s, or PCIe 3, still reaches with large calls; TCP sockets
and a wrong card stay below. Source: bandwidths that nccl-tests shows for these links."""

FOR_SLOW = (
    "Find out which way NCCL takes (`NCCL_DEBUG=INFO`: `NET/Socket` is TCP, `NET/IB` InfiniBand or "
    "RoCE; `NCCL_IB_HCA` and `NCCL_SOCKET_IFNAME` choose the card), and measure the same nodes "
    "with nccl-tests."
)


@dataclass(frozen=True, slots=True)
class SlowTransfer:
    """The collective of a dimension that is slow and exposed longest.

    Args:
        text: a sentence with a blank before it.
        busbw_gbps: its bus bandwidth, decimal GB/s.
        collective: which.
    """

    text: str
    busbw_gbps: float
    collective: str


def slow_transfer(
    ranks: Sequence[RankResult], dimension: str, *, all_there: bool
) -> SlowTransfer | None:
    """What is slow although ranks do not wait for each other; None if nothing is, or if it is
    unknown: without bytes in the trace, and of calls that no other rank's trace has.

    Args:
        ranks: that take part.
        dimension: of the communication.
        all_there: whether the job has no rank without a trace, for whom these ranks may wait.
    """
    rows = [row for rank in ranks for row in rank.communication if row.dimension == dimension]
    slow = max(filter(_is_slow, rows), key=lambda row: row.exposed_ns, default=None)
    if slow is None or slow.busbw_gbps is None or slow.bytes is None:
        return None
    if slow.exposed_ns < sum(row.exposed_ns for row in _of_rank(ranks, slow, dimension)) / 2:
        return None
    each = slow.bytes // slow.calls
    lacking = "" if all_there else ", if no rank without a trace arrives late"
    return SlowTransfer(
        f" The {calls_of(dimension, slow.collective)} of {size(each)} move "
        f"{number(slow.busbw_gbps)} GB/s (busbw), less than one network card of 100 Gb/s "
        f"carries{lacking}.",
        slow.busbw_gbps,
        slow.collective,
    )


def _is_slow(row: CommunicationRow) -> bool:
    return (
        row.wait_ns is not None
        and row.busbw_gbps is not None
        and row.bytes is not None
        and row.bytes >= _LEAST_BYTES * row.calls
        and row.busbw_gbps < _SLOW_GBPS
    )


def _of_rank(
    ranks: Sequence[RankResult], slow: CommunicationRow, dimension: str
) -> Iterable[CommunicationRow]:
    """All rows of the dimension on the rank that has this one."""
    rank = next(one for one in ranks if any(row is slow for row in one.communication))
    return (row for row in rank.communication if row.dimension == dimension)
