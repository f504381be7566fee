# SPDX-License-Identifier: Apache-2.0
"""All ranks in one view: what a report says first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from megatron.torch_trace.analysis.communication.dimensions import order_of
from megatron.torch_trace.analysis.timeline.moment import Moment

if TYPE_CHECKING:
    from megatron.torch_trace.analysis.communication.totals import CommunicationRow
    from megatron.torch_trace.analysis.results.analysis import RankResult

_MOST_RANKS = 16


@dataclass(frozen=True, slots=True)
class Shares:
    """Parts of the window, 0 to 1, means over the ranks whose utilisation is known."""

    compute: float
    exposed_communication: float
    exposed_memory: float
    idle: float
    overlapped_communication: float


@dataclass(frozen=True, slots=True)
class IdleShares:
    """Causes of idle time as parts of the window; see `host.IdleCauses`."""

    data: float
    sync: float
    cpu: float
    gpu: float
    unknown: float


@dataclass(frozen=True, slots=True)
class CommunicationSummary:
    """One line of the communication table; times are means over the ranks that have it, ns.

    Args:
        ranks: how many ranks have it.
        calls: mean a rank.
        wait_ns: None if no call was matched on another rank.
        bytes: mean a rank; None if unknown on any.
        busbw_gbps: mean over the ranks that know it.
        share: of the window.
        longest, longest_rank: the longest call of all, and whose it is.
    """

    dimension: str
    group: str
    collective: str
    ranks: int
    calls: float
    time_ns: float
    exposed_ns: float
    wait_ns: float | None
    bytes: float | None
    busbw_gbps: float | None
    share: float
    longest: Moment | None = field(default=None, compare=False)
    longest_rank: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class WorkSummary:
    """One line of a table of work: kernels, families, operators; means over the known ranks.

    Args:
        name: kernel, family, operator, or operator and shape (`detail`).
        detail: family of a kernel, shape of an operator, "" otherwise.
        calls: mean a rank; time_ns: mean a rank; share: of the window.
        mean_ns: of one call.
        longest, longest_rank: the longest call of all, and whose it is.
    """

    name: str
    detail: str
    calls: float
    time_ns: float
    share: float
    mean_ns: float
    longest: Moment | None = field(default=None, compare=False)
    longest_rank: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Summary:
    """Means over ranks.

    Args:
        shares, idle: None if utilisation is unknown on all ranks.
        dimensions: dimension -> exposed share of the window, largest first.
        window_ns, iteration_ns: means; `iteration_ns` is None without ProfilerStep.
        steps: numbers of the steps.
        communication, kernels, families, operators, shapes: tables, by time.
        extremes: of more than 16 ranks the 8 least and the 8 most idle, ascending; else all.
        undisturbed_iteration_ns: mean over the ranks that know it; None if none does.
        slowdown: recorded / undisturbed iteration, of means over the ranks that know both.
    """

    shares: Shares | None
    idle: IdleShares | None
    dimensions: Mapping[str, float]
    window_ns: float
    iteration_ns: float | None
    steps: tuple[int, ...]
    communication: tuple[CommunicationSummary, ...]
    kernels: tuple[WorkSummary, ...]
    families: tuple[WorkSummary, ...]
    operators: tuple[WorkSummary, ...]
    shapes: tuple[WorkSummary, ...]
    extremes: tuple[int, ...]
    undisturbed_iteration_ns: float | None = None
    slowdown: float | None = None


def summarise(ranks: Sequence[RankResult]) -> Summary:
    """Means over ranks: times in ns of the whole window, shares of 1, bandwidths in GB/s.

    Args:
        ranks: at least one.

    Source: docs/computed.md.
    """
    known = [rank for rank in ranks if rank.breakdown is not None]
    recorded = known or ranks  # who was not recorded has not done nothing
    lengths = [step.end_ns - step.start_ns for rank in ranks for step in rank.steps]
    names = sorted({total.dimension for rank in known for total in rank.dimensions})
    exposed = {
        name: _mean(
            sum(t.exposed_ns for t in rank.dimensions if t.dimension == name) / rank.window_ns
            for rank in known
        )
        for name in names
    }
    return Summary(
        shares=_shares(known),
        idle=_idle(known),
        dimensions=dict(sorted(exposed.items(), key=lambda item: -item[1])),
        window_ns=_mean(rank.window_ns for rank in ranks),
        iteration_ns=_mean(lengths) if lengths else None,
        steps=tuple(sorted({step.step for rank in ranks for step in rank.steps})),
        communication=_communication(recorded),
        kernels=_work(
            recorded,
            lambda r: [(k.name, k.family, k.calls, k.time_ns, k.longest) for k in r.kernels],
        ),
        families=_work(
            recorded, lambda r: [(f.family, "", f.calls, f.time_ns, None) for f in r.families]
        ),
        operators=_work(
            recorded,
            lambda r: [(o.operator, "", o.kernels, o.time_ns, o.longest) for o in r.operators],
        ),
        shapes=_work(
            recorded,
            lambda r: [
                (o.operator, o.shape or "", o.kernels, o.time_ns, o.longest) for o in r.shapes
            ],
        ),
        extremes=_extremes(ranks),
        undisturbed_iteration_ns=_mean_if_known(one.undisturbed_iteration_ns for one in ranks),
        slowdown=_slowdown(ranks),
    )


def _mean_if_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _mean(known) if known else None


def _slowdown(ranks: Sequence[RankResult]) -> float | None:
    known = [rank for rank in ranks if rank.slowdown is not None]
    recorded = _mean_if_known(rank.recorded_iteration_ns for rank in known)
    undisturbed = _mean_if_known(rank.undisturbed_iteration_ns for rank in known)
    return recorded / undisturbed if recorded and undisturbed else None


def _extremes(ranks: Sequence[RankResult]) -> tuple[int, ...]:
    if len(ranks) <= _MOST_RANKS:
        return tuple(rank.rank for rank in ranks)
    # Ranks of unknown utilisation count as the most idle: they want looking at.
    idle = sorted(
        (rank.breakdown.idle / rank.window_ns if rank.breakdown else 2.0, rank.rank)
        for rank in ranks
    )
    half = _MOST_RANKS // 2
    return tuple(sorted(rank for _, rank in idle[:half] + idle[-half:]))


def _longest(moments: Iterable[tuple[int, Moment | None]]) -> tuple[int | None, Moment | None]:
    """(rank, moment) of the longest of several ranks' moments."""
    known = [(rank, moment) for rank, moment in moments if moment is not None]
    return max(known, key=lambda one: one[1].duration_ns, default=(None, None))


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0


def _shares(known: Sequence[RankResult]) -> Shares | None:
    if not known:
        return None
    parts = [(rank.breakdown, rank) for rank in known if rank.breakdown is not None]
    return Shares(
        compute=_mean(b.compute / rank.window_ns for b, rank in parts),
        exposed_communication=_mean(b.exposed_communication / rank.window_ns for b, rank in parts),
        exposed_memory=_mean(b.exposed_memory / rank.window_ns for b, rank in parts),
        idle=_mean(b.idle / rank.window_ns for b, rank in parts),
        overlapped_communication=_mean(
            (rank.overlapped_communication_ns or 0) / rank.window_ns for rank in known
        ),
    )


def _idle(known: Sequence[RankResult]) -> IdleShares | None:
    if not known:
        return None
    return IdleShares(
        data=_mean(r.host.idle.data_ns / r.window_ns for r in known),
        sync=_mean(r.host.idle.sync_ns / r.window_ns for r in known),
        cpu=_mean(r.host.idle.cpu_ns / r.window_ns for r in known),
        gpu=_mean(r.host.idle.gpu_ns / r.window_ns for r in known),
        unknown=_mean(r.host.idle.unknown_ns / r.window_ns for r in known),
    )


def _communication(ranks: Sequence[RankResult]) -> tuple[CommunicationSummary, ...]:
    by_key: dict[tuple[str, str, str], list[tuple[int, CommunicationRow]]] = {}
    for rank in ranks:
        for row in rank.communication:
            key = (row.dimension, row.group, row.collective)
            by_key.setdefault(key, []).append((rank.rank, row))
    found = []
    for key, of in sorted(by_key.items()):
        rows = [row for _, row in of]
        longest = _longest((rank, row.longest) for rank, row in of)
        sizes = [row.bytes for row in rows if row.bytes is not None]
        found.append(
            CommunicationSummary(
                *key,
                ranks=len(rows),
                calls=_mean(row.calls for row in rows),
                time_ns=_mean(row.time_ns for row in rows),
                exposed_ns=_mean(row.exposed_ns for row in rows),
                wait_ns=_mean_if_known(row.wait_ns for row in rows),
                bytes=_mean(sizes) if len(sizes) == len(rows) else None,
                busbw_gbps=_mean_if_known(row.busbw_gbps for row in rows),
                share=_mean(row.share for row in rows),
                longest=longest[1],
                longest_rank=longest[0],
            )
        )
    return tuple(sorted(found, key=lambda r: (order_of(r.dimension), -r.time_ns, r.group)))


_Row = tuple[str, str, int, int, Moment | None]


@dataclass(slots=True)
class _Total:
    """Of one line: sums over ranks, and the longest moment of all."""

    pieces: int = 0
    time_ns: int = 0
    share: float = 0.0
    longest_ns: int = -1
    longest: Moment | None = None
    whose: int | None = None


def _work(
    ranks: Sequence[RankResult], rows_of: Callable[[RankResult], list[_Row]]
) -> tuple[WorkSummary, ...]:
    totals: defaultdict[tuple[str, str], _Total] = defaultdict(_Total)
    for rank in ranks:
        window = rank.window_ns
        for name, detail, pieces, time_ns, moment in rows_of(rank):
            total = totals[name, detail]
            total.pieces += pieces
            total.time_ns += time_ns
            total.share += time_ns / window
            if moment is not None and moment.duration_ns > total.longest_ns:
                total.longest_ns, total.longest, total.whose = moment.duration_ns, moment, rank.rank
    count = len(ranks)
    found = []
    for key, total in sorted(totals.items(), key=lambda one: (-one[1].time_ns, one[0])):
        calls, time, share = total.pieces, total.time_ns, total.share
        means = (calls / count, time / count, share / count, time / calls)
        found.append(WorkSummary(*key, *means, longest=total.longest, longest_rank=total.whose))
    return tuple(found)
