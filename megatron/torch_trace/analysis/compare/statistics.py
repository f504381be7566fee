# SPDX-License-Identifier: Apache-2.0
"""Is a difference more than noise: Student's and Welch's t, without scipy.

Windows hold few steps, often two. A permutation test of 2 against 2 can reach no p below 1/3, so it
could never find anything; a t interval can, at the price of taking the noise for normal, and with
so few samples it is as wide as it has to be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean, variance

LEVEL = 0.05
STEPS, RANKS, PAIRED = "steps", "ranks", "ranks, paired"


@dataclass(frozen=True, slots=True)
class Difference:
    """One quantity of A and of B, in its unit (ns, calls, bytes, ...), for an iteration and a rank.

    Args:
        before, after: in A and in B; None where unknown.
        low, high: 95 % confidence interval of `change`; None without samples enough.
        p: chance of a difference as large if there were none, made stricter for the number of rows
            that were tested together (`correct`); None without samples enough.
        over: what the samples are, `STEPS`, `RANKS` or `PAIRED`; None if there is no test.
        samples: how many in A and in B.
    """

    before: float | None
    after: float | None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    over: str | None = None
    samples: tuple[int, int] = (0, 0)

    @property
    def change(self) -> float | None:
        """after - before; None if one of them is unknown."""
        if self.before is None or self.after is None:
            return None
        return self.after - self.before

    @property
    def relative(self) -> float | None:
        """change / before; None if unknown, or if something came from nothing."""
        change = self.change
        if change is None or not self.before:
            return 0.0 if change == 0 else None
        return change / self.before

    @property
    def significant(self) -> bool | None:
        """Whether noise is no explanation at 5 %; None if there is no test."""
        return None if self.p is None else self.p < LEVEL


def independent(before: Sequence[float], after: Sequence[float], over: str) -> Difference:
    """Means of two sets of samples that have nothing to do with each other.

    Welch's t where both have two samples or more. A single one has no spread of its own: then the
    other's stands for both (Student's t), and with a single one on both sides there is no test.

    Args:
        before, after: samples of A and of B in one unit, which the difference has too.
        over: what the samples are.

    Source: Welch 1947, "The generalization of 'Student's' problem"; docs/compare.md.
    """
    counts = (len(before), len(after))
    if not before or not after:
        return Difference(_mean(before), _mean(after), samples=counts)
    plain = Difference(fmean(before), fmean(after), over=over, samples=counts)
    if sum(counts) < 3:
        return replace(plain, over=None)
    spread = [variance(one) if len(one) > 1 else None for one in (before, after)]
    if spread[0] is None or spread[1] is None:
        common = spread[0] if spread[0] is not None else spread[1]
        assert common is not None
        error = math.sqrt(common * (1 / counts[0] + 1 / counts[1]))
        return _tested(plain, error, sum(counts) - 2)
    parts = (spread[0] / counts[0], spread[1] / counts[1])
    error = math.sqrt(sum(parts))
    divisor = parts[0] ** 2 / (counts[0] - 1) + parts[1] ** 2 / (counts[1] - 1)
    freedom = sum(parts) ** 2 / divisor if divisor else sum(counts) - 2
    return _tested(plain, error, freedom)


def paired(before: Mapping[int, float], after: Mapping[int, float]) -> Difference:
    """Means over the same ranks: each rank is compared with itself, so that differences between
    ranks (pipeline stages, for one) are no noise.

    Args:
        before, after: rank -> value, in one unit, with the same ranks, at least one.

    Source: Student's t of the changes.
    """
    counts = (len(before), len(after))
    changes = [after[rank] - before[rank] for rank in before]
    plain = Difference(fmean(before.values()), fmean(after.values()), over=PAIRED, samples=counts)
    if len(changes) < 2:
        return replace(plain, over=None)
    return _tested(plain, math.sqrt(variance(changes) / len(changes)), len(changes) - 1)


def by_rank(before: Mapping[int, float], after: Mapping[int, float]) -> Difference:
    """`paired` where both sides have the same ranks, else `independent`."""
    if before and before.keys() == after.keys():
        return paired(before, after)
    return independent(list(before.values()), list(after.values()), RANKS)


def correct(rows: Sequence[Difference]) -> list[Difference]:
    """The rows with Holm's correction: of 100 kernels 5 would pass at 5 % by chance alone.

    Source: Holm 1979, "A simple sequentially rejective multiple test procedure".
    """
    tested = sorted((row.p, n) for n, row in enumerate(rows) if row.p is not None)
    corrected = list(rows)
    least = 0.0
    for position, (p, n) in enumerate(tested):
        least = max(least, min(1.0, p * (len(tested) - position)))
        corrected[n] = replace(rows[n], p=least)
    return corrected


def _tested(plain: Difference, error: float, freedom: float) -> Difference:
    change = plain.change
    assert change is not None
    if not error:
        return replace(plain, low=change, high=change, p=0.0 if change else 1.0)
    half = critical_t(freedom) * error
    return replace(
        plain, low=change - half, high=change + half, p=two_sided_p(change / error, freedom)
    )


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def two_sided_p(t: float, freedom: float) -> float:
    """P(|T| >= |t|) of Student's distribution: I_x(freedom/2, 1/2), x = freedom/(freedom + t^2)."""
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


@lru_cache(maxsize=1 << 14)
def critical_t(freedom: float, level: float = LEVEL) -> float:
    """The t whose two-sided p is `level`; 12.7 for one degree of freedom, 1.96 for many."""
    low, high = 0.0, 1e6
    for _ in range(48):
        middle = (low + high) / 2
        if two_sided_p(middle, freedom) > level:
            low = middle
        else:
            high = middle
    return high


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function (Abramowitz and Stegun 26.5.8, continued fraction)."""
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    # From the far end of the fraction, where what is left out no longer matters.
    fraction = 1.0
    for m in range(100, 0, -1):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m - 1) * (a + b + m - 1) * x / ((a + 2 * m - 2) * (a + 2 * m - 1))
        fraction = 1 + odd / (1 + even / fraction)
    return front / (a * fraction)
