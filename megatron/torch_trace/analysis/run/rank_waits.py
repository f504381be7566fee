# SPDX-License-Identifier: Apache-2.0
"""A rank's table of communication, with what only the other ranks can tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from megatron.torch_trace.analysis.communication.bandwidth import bus_factor
from megatron.torch_trace.analysis.communication.rank_calls import RankCalls
from megatron.torch_trace.analysis.communication.stragglers import RankWaits
from megatron.torch_trace.analysis.communication.totals import CommunicationRow, bus_bytes
from megatron.torch_trace.analysis.results.analysis import RankResult
from megatron.torch_trace.columns.intervals import Ints, ints


@dataclass(frozen=True, slots=True)
class _Lines:
    """Which of a rank's calls are of which line of its table.

    Args:
        calls: of which rank.
        key: what else it depends on.
        rows: of the calls, by line, ascending in each.
        lines: numbers of the lines that have calls.
        begins: where the rows of each of these begin.
        bus_bytes: of each of these.
    """

    calls: RankCalls
    key: tuple[tuple[int, float | None], ...]
    rows: Ints
    lines: list[int]
    begins: Ints
    bus_bytes: list[float]


class WaitingRanks:
    """Puts waits into results; ranks that share columns of calls share what is told of them."""

    def __init__(self) -> None:
        self._last: _Lines | None = None

    def with_waits(self, result: RankResult, calls: RankCalls, waits: RankWaits) -> RankResult:
        """The result of a rank with its waits.

        Args:
            result, calls: of the rank.
            waits: of the rows of `calls`.
        """
        of = self._lines(result.communication, calls)
        table = list(result.communication)
        if len(of.rows):
            columns = np.stack((waits.matched, waits.wait, waits.shortest))[:, of.rows]
            sums = np.add.reduceat(columns, of.begins, axis=1).T.tolist()
            for line, bus, (matched, wait, time) in zip(of.lines, of.bus_bytes, sums, strict=True):
                if matched:
                    table[line] = _with_waits(table[line], wait, time, bus)
        return replace(result, communication=tuple(table), wait_ns=int(waits.wait.sum()))

    def _lines(self, table: Sequence[CommunicationRow], calls: RankCalls) -> _Lines:
        number = {(one.dimension, one.group, one.collective): n for n, one in enumerate(table)}
        key = tuple(
            (
                number.get((one.dimension, one.group, one.collective), -1),
                bus_factor(one.collective, one.group_size),
            )
            for one in calls.kinds
        )
        last = self._last
        if (
            last is None
            or last.key != key
            or last.calls.kind is not calls.kind
            or last.calls.bytes is not calls.bytes
        ):
            last = self._last = _lines(calls, key)
        return last


def _lines(calls: RankCalls, key: tuple[tuple[int, float | None], ...]) -> _Lines:
    of = ints([line for line, _ in key])[calls.kind] if key else ints([])
    order = np.argsort(of, kind="stable")
    # Calls of no line come first.
    rows = order[int((of < 0).sum()) :]
    lines, begins = np.unique(of[rows], return_index=True)
    parts = np.split(rows, begins[1:])
    return _Lines(
        calls,
        key,
        rows,
        lines.tolist(),
        begins,
        [bus_bytes(calls.kinds, calls.kind[part], calls.bytes[part]) for part in parts],
    )


def _with_waits(line: CommunicationRow, wait: int, time: int, bus: float) -> CommunicationRow:
    known = line.bytes is not None and line.algbw_gbps is not None and time
    return replace(
        line,
        wait_ns=wait,
        algbw_gbps=(line.bytes or 0) / time if known else None,
        busbw_gbps=bus / time if known else None,
        bandwidth_time_ns=time,
    )
