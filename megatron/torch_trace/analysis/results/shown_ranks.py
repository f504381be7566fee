# SPDX-License-Identifier: Apache-2.0
"""The ranks that get a row each on a page: of thousands those that matter, and some others."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult

MOST = 1024
"""Ranks with a row each: a browser takes a page of some MB, and nobody reads more rows."""
_LATE = 128


def shown_ranks(analysis: Analysis) -> tuple[RankResult, ...]:
    """All ranks, ascending; of more than `MOST` as many: those that matter, then every n-th one."""
    ranks = analysis.ranks
    if len(ranks) <= MOST:
        return ranks
    chosen = set(islice(dict.fromkeys(_that_matter(analysis)), MOST // 2))
    others = [rank.rank for rank in ranks if rank.rank not in chosen]
    room = MOST - len(chosen)
    # As far apart as they can be, so that every stage and copy of the model has some.
    chosen.update(others[number * len(others) // room] for number in range(room))
    return tuple(rank for rank in ranks if rank.rank in chosen)


def _that_matter(analysis: Analysis) -> Iterator[int]:
    """Those of findings, the extremes, the latest, the worst call's; unknown ones among them."""
    for finding in analysis.findings:
        if finding.example is not None:
            yield finding.example[0]
        for name in ("rank", "ranks"):
            found = finding.evidence.get(name)
            for rank in found if isinstance(found, (list, tuple)) else (found,):
                if isinstance(rank, int):
                    yield rank
    yield from analysis.summary.extremes
    yield from (one.rank for one in analysis.stragglers[:_LATE])
    if analysis.worst_call is not None:
        yield from (one.rank for one in analysis.worst_call.arrivals[:_LATE])
    yield from (rank.rank for rank in analysis.ranks if rank.breakdown is None or rank.damage)
