# SPDX-License-Identifier: Apache-2.0
"""Communication of one rank by dimension, group and collective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from megatron.torch_trace.analysis.communication.bandwidth import bus_factor
from megatron.torch_trace.analysis.communication.collectives import CollectiveCalls, CollectiveKind
from megatron.torch_trace.analysis.communication.dimensions import order_of
from megatron.torch_trace.analysis.timeline.activity import NONE
from megatron.torch_trace.analysis.timeline.code_columns import rows_with
from megatron.torch_trace.analysis.timeline.moment import Moment, longest
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.columns.intervals import Ints


@dataclass(frozen=True, slots=True)
class CommunicationRow:
    """Calls of one collective over one process group.

    Args:
        dimension, group, collective: see `collectives.CollectiveKind`.
        calls: kernels that run in the window.
        time_ns: union of the calls, clipped to the window.
        exposed_ns: of that, while no compute kernel ran.
        wait_ns: sum over matched calls of the time before the last rank had arrived; None where
            no other rank's trace has the call.
        share: time_ns / window.
        bytes: sum over calls of nccl-tests' S; None if unknown for any of them.
        algbw_gbps, busbw_gbps: bytes / time of the calls, decimal GB/s; None if unknown.
        bandwidth_time_ns: that time: of a matched call the shortest over the ranks, else its own.
        longest: the longest call.
    """

    dimension: str
    group: str
    collective: str
    calls: int
    time_ns: int
    exposed_ns: int
    wait_ns: int | None
    share: float
    bytes: int | None
    algbw_gbps: float | None
    busbw_gbps: float | None
    bandwidth_time_ns: int
    longest: Moment | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class DimensionTotal:
    """Unions over all calls of one dimension, in ns; dimensions may overlap each other."""

    dimension: str
    time_ns: int
    exposed_ns: int


def communication_rows(timeline: Timeline, calls: CollectiveCalls) -> tuple[CommunicationRow, ...]:
    """One row for each (dimension, group, collective), by dimension, then by time.

    Times are unions in ns, bandwidths decimal GB/s, that is bytes a ns. `wait_ns` is None: one rank
    alone does not tell it. Source: docs/computed.md, "Classes of time" and "Communication".
    """
    groups: dict[tuple[str, str, str], list[int]] = {}
    for code, kind in enumerate(calls.kinds):
        groups.setdefault((kind.dimension, kind.group, kind.collective), []).append(code)
    rows = [_row(timeline, calls, *key, codes) for key, codes in groups.items()]
    return tuple(sorted(rows, key=lambda r: (order_of(r.dimension), -r.time_ns, r.group)))


def _row(
    timeline: Timeline,
    calls: CollectiveCalls,
    dimension: str,
    group: str,
    collective: str,
    codes: list[int],
) -> CommunicationRow:
    mine = rows_with(calls.kind, codes, len(calls.kinds))
    gpu = timeline.activity.gpu
    rows = calls.rows[mine]
    mask = np.zeros(len(gpu), dtype=bool)
    mask[rows] = True
    union = timeline.union(mask)
    duration = int((gpu.end[rows] - gpu.start[rows]).sum())
    factors = [bus_factor(collective, calls.kinds[code].group_size) for code in codes]
    sizes = calls.bytes[mine]
    total = None if None in factors or (sizes == NONE).any() else int(sizes.sum())
    known = total is not None and duration > 0 and collective != "barrier"
    return CommunicationRow(
        dimension=dimension,
        group=group,
        collective=collective,
        calls=len(rows),
        time_ns=union.total,
        exposed_ns=union.minus(timeline.sets.compute).total,
        wait_ns=None,
        share=timeline.window.share(union.total),
        bytes=total,
        algbw_gbps=total / duration if known and total is not None else None,
        busbw_gbps=bus_bytes(calls.kinds, calls.kind[mine], sizes) / duration if known else None,
        bandwidth_time_ns=duration,
        longest=longest(gpu.start[rows], gpu.end[rows]),
    )


def bus_bytes(kinds: Sequence[CollectiveKind], kind: Ints, sizes: Ints) -> float:
    """Bytes x bus factor, summed over calls: divided by ns it is busbw in decimal GB/s.

    Args:
        kinds: what the codes mean.
        kind, sizes: code and bytes of each call, both of shape (calls,); what is unknown adds
            nothing.

    Source: see `bandwidth.bus_factor`.
    """
    factors = np.array([bus_factor(one.collective, one.group_size) or 0.0 for one in kinds])
    return float((factors[kind] * np.maximum(sizes, 0)).sum()) if len(kind) else 0.0


def dimension_totals(timeline: Timeline, calls: CollectiveCalls) -> tuple[DimensionTotal, ...]:
    """Time and exposed time of each dimension in ns, the most exposed first.

    Exposed is the union of its calls minus compute (docs/computed.md, "Classes of time").
    """
    names = sorted({kind.dimension for kind in calls.kinds})
    totals = []
    for name in names:
        codes = [code for code, kind in enumerate(calls.kinds) if kind.dimension == name]
        mask = np.zeros(len(timeline.activity.gpu), dtype=bool)
        mask[calls.rows[rows_with(calls.kind, codes, len(calls.kinds))]] = True
        union = timeline.union(mask)
        exposed = union.minus(timeline.sets.compute).total
        totals.append(DimensionTotal(name, union.total, exposed))
    return tuple(sorted(totals, key=lambda t: (-t.exposed_ns, -t.time_ns)))
