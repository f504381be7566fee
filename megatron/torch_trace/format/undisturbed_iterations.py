# SPDX-License-Identifier: Apache-2.0
"""Iterations without the profiler next to a window: how capture tells them, and what they say.

A trace's own metadata holds those before the warm-up as `undisturbed_iterations`, pairs of an
iteration's global number and its length in ns by the host's clock. Those after the window come when
the trace is on its way already, so a small file beside it holds all of them, of one rank:

    artifacts/rank-07.iterations.json
        {"schema": 1, "run": "20261127-221810", "rank": 7, "window": {"first": 12, "last": 12},
         "warm_up": [[11, 655000000]], "start_ns": 1200000, "recorded": [[12, 693000000]],
         "following": [[13, 640000000]], "undisturbed": [[9, 585000000], [10, ...], [14, ...]]}

`start_ns` is how long the profiler's start held training: the recorded iteration begins after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from megatron.torch_trace.format.file_names import ARTIFACTS
from megatron.torch_trace.wording import duration, percent

METADATA_NAME = "undisturbed_iterations"
SUFFIX = "iterations.json"
LEAST = 5
"""Of fewer a median says little: the first ones still compile, load data, and grow pools."""
_MOST = 1 << 62
"""More than any number of iterations, and any length; what a kept analysis can hold."""
_HARDLY = 0.005
"""A part of an iteration by which any two differ."""
_MUCH = 1.0
"""More than so many times longer an iteration seldom is because of the profiler alone."""


@dataclass(frozen=True, slots=True)
class UndisturbedIterations:
    """Iterations next to a window in which no profiler ran: training, no evaluation, no checkpoint.

    Args:
        lengths: (global iteration, ns by the host's clock), ascending.
    """

    lengths: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, pairs: Iterable[object]) -> UndisturbedIterations:
        """From what a file holds; what is no pair of an iteration and a length is left out."""
        found = {}
        for pair in pairs:
            if isinstance(pair, (list, tuple)) and len(pair) == 2:
                iteration, ns = pair
                whole = type(iteration) is int and type(ns) is int
                if whole and 0 <= iteration < _MOST and 0 < ns < _MOST:
                    found[iteration] = ns
        return cls(tuple(sorted(found.items())))

    @property
    def median_ns(self) -> int | None:
        """The undisturbed iteration; None where there are too few to tell."""
        if len(self.lengths) < LEAST:
            return None
        return round(median(ns for _, ns in self.lengths))

    @property
    def spread(self) -> float | None:
        """Half of the distance between their quartiles, of the median; None of too few."""
        if len(self.lengths) < LEAST:
            return None
        low, middle, high = quantiles([ns for _, ns in self.lengths], n=4)
        return (high - low) / 2 / middle

    @property
    def usual_ns(self) -> tuple[float, float] | None:
        """Between which lengths four in five of them lie; None of too few."""
        if len(self.lengths) < LEAST:
            return None
        deciles = quantiles([ns for _, ns in self.lengths], n=10, method="inclusive")
        return deciles[0], deciles[-1]

    def joined(self, other: UndisturbedIterations) -> UndisturbedIterations:
        """These and those, each iteration once."""
        return UndisturbedIterations.of([*self.lengths, *other.lengths])


def beside(trace: Path) -> Path:
    """The file that tells the iterations around a trace, there or not."""
    return trace.parent / ARTIFACTS / f"{trace.name.split('.')[0]}.{SUFFIX}"


def slowdown_sentence(
    recorded_ns: float | None,
    undisturbed_ns: float | None,
    ranks: Sequence[UndisturbedIterations],
) -> str:
    """How much longer the recorded iteration is than one without the profiler, without a full stop.

    Args:
        recorded_ns: None where nothing tells it.
        undisturbed_ns: None where there are too few iterations without the profiler.
        ranks: the iterations without the profiler, of each rank.
    """
    amounts = sorted({len(one.lengths) for one in ranks})
    recorded = f"Recorded iteration {duration(recorded_ns)}; undisturbed"
    if undisturbed_ns is None:
        return f"{recorded} unknown: fewer than {LEAST} ran near the window without the profiler"
    if recorded_ns is None:
        recorded = "Undisturbed iteration"
    several = len(amounts) > 1
    of = f"medians of {amounts[0]} to {amounts[-1]}" if several else f"median of {amounts[0]}"
    undisturbed = f"{recorded} {duration(undisturbed_ns)} ({of})"
    if recorded_ns is None:
        return undisturbed
    more = recorded_ns / undisturbed_ns - 1
    if more < _HARDLY:
        return f"{undisturbed}: the profiler did not slow it"
    usual = [one.usual_ns for one in ranks if one.usual_ns is not None]
    if usual and recorded_ns <= (high := max(high for _, high in usual)):
        low = min(low for low, _ in usual)
        return (
            f"{undisturbed}, most of them {duration(low)} to {duration(high)}: the profiler "
            "slowed it by no more than iterations differ"
        )
    if more > _MUCH:
        return (
            f"{undisturbed}: {percent(more)} longer, because of the profiler or because it "
            "was a slow iteration"
        )
    return f"{undisturbed}: the profiler slowed it by {percent(more)}"
