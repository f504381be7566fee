# SPDX-License-Identifier: Apache-2.0
"""A rank that the others of its group wait for, again and again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from megatron.torch_trace.analysis.communication.dimensions import ADJECTIVES
from megatron.torch_trace.analysis.communication.stragglers import Straggler
from megatron.torch_trace.analysis.findings.communication.call_names import calls_of
from megatron.torch_trace.analysis.findings.communication.late_cause import LateCause, late_cause
from megatron.torch_trace.analysis.findings.examples import largest
from megatron.torch_trace.analysis.findings.shares import an_iteration, milliseconds, severity
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding, RankResult
from megatron.torch_trace.analysis.timeline.moment import Example
from megatron.torch_trace.wording import percent, ranks

SLUG = "straggler"
_LEAST_SHARE = 0.02
"""Of the window, that each of the others waits."""
_LEAST_CALLS = 3
_MOSTLY = 0.6
"""Of these calls; by chance one of two ranks is last in half of them."""
_MANY = 3
"""From so many on, ranks that are late in the same calls for the same reason are told together."""

_MOST_HOSTS = 3
"""That are named."""


def rule(analysis: Analysis) -> Iterator[Finding]:
    """One finding for each rank that delays the others; many that are alike are one together."""
    alike: dict[tuple[str | None, str | None, str], list[_Late]] = {}
    for late in _late_ranks(analysis):
        one = late.straggler
        alike.setdefault((one.dimension, one.collective, late.cause.kind), []).append(late)
    for found in alike.values():
        if len(found) < _MANY:
            yield from (_finding(late) for late in found)
        else:
            yield _together(found, analysis.ranks)


@dataclass(frozen=True, slots=True)
class _Late:
    """A rank that is late often enough.

    Args:
        straggler, result: its lateness and its analysis.
        others: who waits for it.
        cause: why it is late.
        lost: ns that its delay may cost.
        share: of the window.
        remaining: of that, what the profiler's slowdown does not explain.
    """

    straggler: Straggler
    result: RankResult
    others: _Others
    cause: LateCause
    lost: int
    share: float
    remaining: float


def _late_ranks(analysis: Analysis) -> Iterator[_Late]:
    results = {rank.rank: rank for rank in analysis.ranks}
    exposed = _MostExposed.of(analysis.ranks)
    for one in analysis.stragglers:
        result = results[one.rank]
        lost = exposed.lost(one)
        share = lost / result.window_ns if result.window_ns else 0.0
        if (
            share < _LEAST_SHARE
            or one.calls_there < _LEAST_CALLS
            or one.share_there is None
            or one.share_there < _MOSTLY
        ):
            continue
        others = _Others.of(one, results)
        cause = late_cause(result, analysis.ranks, one.peers, others.words, one.dimension)
        remaining = share
        if cause.explained_ns:
            remaining = max(0, lost - cause.explained_ns) / (result.window_ns - result.slowed_ns)
            if remaining < _LEAST_SHARE:
                continue
        yield _Late(one, result, others, cause, lost, share, remaining)


@dataclass(frozen=True, slots=True)
class _Others:
    """Who waits for a late rank: `rank 0`, `the other ranks`, or those of its group alone."""

    words: str
    single: bool

    @classmethod
    def of(cls, one: Straggler, results: Mapping[int, RankResult]) -> _Others:
        waiting = one.peers or tuple(rank for rank in results if rank != one.rank)
        if len(waiting) == 1:
            return cls(f"rank {waiting[0]}", True)
        if len(waiting) + 1 >= len(results):
            return cls("the other ranks", False)
        kind = ADJECTIVES.get(one.dimension or "", "")
        return cls(f"the other ranks of its {kind} group".replace("  ", " "), False)

    @property
    def subject(self) -> str:
        return self.words.capitalize() if self.single else f"Each of {self.words}"


def _finding(late: _Late) -> Finding:
    one, cause = late.straggler, late.cause
    return Finding(
        SLUG,
        severity(late.remaining),
        f"Rank {one.rank} arrives last in {percent(one.share_there)} of the {_calls(one)}. "
        f"{_delay(late)}.{cause.text}{_remains(late)}",
        _evidence(late),
        cause.advice,
        late.remaining,
        _example(one),
    )


def _together(found: list[_Late], every: Sequence[RankResult]) -> Finding:
    """Ranks that are late in the same calls for the same reason, by the worst of them."""
    worst = max(found, key=lambda late: (late.remaining, -late.straggler.rank))
    one = worst.straggler
    numbers = tuple(sorted(late.straggler.rank for late in found))
    shares = [late.straggler.share_there or 0.0 for late in found]
    where = _common(found, every)
    return replace(
        _finding(worst),
        title=f"Ranks {ranks(numbers)}{where} arrive last in {_span(shares)} of the {_calls(one)} "
        f"of their groups. The worst is rank {one.rank}: {_lower(_delay(worst))}.{worst.cause.text}"
        f"{_remains(worst)}",
        evidence={**_evidence(worst), "ranks": list(numbers)},
    )


def _common(found: list[_Late], every: Sequence[RankResult]) -> str:
    """Hosts and coordinates that late ranks share and other ranks do not: `, all on host a,`."""
    said = []
    hosts = Counter(late.result.host_name or "" for late in found)
    if len(hosts) == 1 and "" not in hosts:
        said.append(f"on host {next(iter(hosts))}")
    elif "" not in hosts and len(hosts) <= _MOST_HOSTS < len({rank.host_name for rank in every}):
        said.append(f"on hosts {', '.join(sorted(hosts))}")
    common = _coordinates([late.result for late in found]) - _coordinates(every)
    if common:
        said.append(f"with {' '.join(f'{name}{at}' for name, at in sorted(common))}")
    return f", all {' and '.join(said)}," if said else ""


def _coordinates(shared_by: Sequence[RankResult]) -> frozenset[tuple[str, int]]:
    """The coordinates that all of these ranks have."""
    first, *others = (frozenset(one.coordinates.items()) for one in shared_by)
    return first.intersection(*others)


def _span(shares: list[float]) -> str:
    """`92 % to 100 %`, or the one share of all."""
    least, most = percent(min(shares)), percent(max(shares))
    return least if least == most else f"{least} to {most}"


def _lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]


def _calls(one: Straggler) -> str:
    return calls_of(one.dimension, one.collective)


def _delay(late: _Late) -> str:
    one = late.straggler
    time = an_iteration(one.delay_ns, late.result)
    total = f" ({milliseconds(one.delay_ns)} in the window)" * (len(late.result.steps) > 1)
    waits = f"{late.others.subject} waits {time} for rank {one.rank}{total}"
    if late.lost == one.delay_ns:
        return f"{waits}, {percent(late.share)} of the window"
    return (
        f"{waits}; for at most {an_iteration(late.lost, late.result)} of that, "
        f"{percent(late.share)} of the window, it computes nothing"
    )


def _example(one: Straggler) -> Example | None:
    return largest((row.imposed_wait_ns, one.rank, row.worst) for row in one.by_collective)


@dataclass(frozen=True, slots=True)
class _MostExposed:
    """The rank whose communication is exposed for longest, and the longest of the others, ns.

    None where there is no such rank of known utilisation.
    """

    rank: int | None
    most: int | None
    second: int | None

    @classmethod
    def of(cls, ranks: Sequence[RankResult]) -> _MostExposed:
        exposed = sorted(
            (
                (rank.breakdown.exposed_communication, rank.rank)
                for rank in ranks
                if rank.breakdown is not None
            ),
            reverse=True,
        )
        (most, rank), (second, _), *_ = (*exposed[:2], (None, None), (None, None))
        return cls(rank, most, second)

    def lost(self, one: Straggler) -> int:
        """What of the delay may cost time: not what the others compute meanwhile.

        Nobody loses more by waiting than its communication is exposed.
        """
        exposed = self.second if one.rank == self.rank else self.most
        return one.delay_ns if exposed is None else min(one.delay_ns, exposed)


def _evidence(late: _Late) -> dict[str, object]:
    one = late.straggler
    return {
        "rank": one.rank,
        "last_arrivals": one.last_arrivals,
        "calls": one.calls,
        "dimension": one.dimension,
        "collective": one.collective,
        "calls_of_these": one.calls_there,
        "share_of_these": one.share_there,
        "imposed_wait_ns": one.imposed_wait_ns,
        "delay_ns": one.delay_ns,
        "lost_ns": late.lost,
        "share": late.share,
        "waiting_ranks": list(one.peers),
        "more_than_median_of_others": late.cause.difference,
        "cause": late.cause.kind or None,
        "explained_ns": late.cause.explained_ns,
        "late_because": late.cause.kind or None,
    }


def _remains(late: _Late) -> str:
    explained_ns = late.cause.explained_ns
    if not explained_ns:
        return ""
    return (
        f" The profiler's slowdown explains {an_iteration(explained_ns, late.result)}, because "
        f"this rank launches more than the others; {percent(late.remaining)} of the undisturbed "
        "iteration remains."
    )
