# SPDX-License-Identifier: Apache-2.0
"""Times of the steps of one case in a few numbers, and whether two cases differ.

Steps that follow one another are alike, and a step that something disturbs is far off. So the
steps are cut into blocks, and the medians of the blocks are compared: by their logarithms, because
a ratio is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, quantiles

from megatron.torch_trace.analysis.compare.statistics import STEPS, independent

_BLOCKS = 10


@dataclass(frozen=True, slots=True)
class Summary:
    """Times of measured steps, in ns."""

    steps: int
    median: float
    mean: float
    least: int
    most: int
    p10: float
    p25: float
    p75: float
    p90: float
    p99: float

    @classmethod
    def of(cls, times: Sequence[int]) -> Summary:
        """Of two or more times."""
        cuts = quantiles(times, n=100, method="inclusive")
        return cls(
            steps=len(times),
            median=median(times),
            mean=fmean(times),
            least=min(times),
            most=max(times),
            p10=cuts[9],
            p25=cuts[24],
            p75=cuts[74],
            p90=cuts[89],
            p99=cuts[98],
        )

    @property
    def spread(self) -> float:
        """From p10 to p90, as a share of the median."""
        return (self.p90 - self.p10) / self.median if self.median else 0.0


@dataclass(frozen=True, slots=True)
class Ratio:
    """A case's time divided by that of another.

    Args:
        value: of the medians.
        low, high: 95 % confidence interval; None with steps too few to tell.
    """

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def sure(self) -> bool | None:
        """Whether the two differ by more than noise explains; None if nothing tells."""
        if self.low is None or self.high is None:
            return None
        return self.low > 1 or self.high < 1

    def surely_beyond(self, factor: float) -> bool:
        """Whether a factor, too, is on the far side of the interval from the value."""
        return self.surely_above(factor) if self.value > 1 else self.surely_below(factor)

    def surely_above(self, factor: float) -> bool:
        """Whether noise does not explain that it is above a factor."""
        return self.value > factor and (self.low is None or self.low > factor)

    def surely_below(self, factor: float) -> bool:
        """Whether noise does not explain that it is below a factor."""
        return self.value < factor and (self.high is None or self.high < factor)


def ratio(times: Sequence[int], base: Sequence[int]) -> Ratio | None:
    """How much longer `times` are than `base`; None if a median is 0."""
    above, below = median(times), median(base)
    if not above or not below:
        return None
    difference = independent(_logarithms(base), _logarithms(times), STEPS)
    if difference.low is None or difference.high is None:
        return Ratio(above / below)
    return Ratio(above / below, math.exp(difference.low), math.exp(difference.high))


def _logarithms(times: Sequence[int]) -> list[float]:
    """Of the medians of blocks; a time of 0 is below what the clock can tell."""
    blocks = min(_BLOCKS, len(times))
    edges = [n * len(times) // blocks for n in range(blocks + 1)]
    return [math.log(max(1.0, median(times[a:b]))) for a, b in pairwise(edges)]
