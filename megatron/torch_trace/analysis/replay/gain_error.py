# SPDX-License-Identifier: Apache-2.0
"""By how much a gain may be wrong: the graph's own error, and luck.

    error² = replay² + steps² + ranks² + passes² + undisturbed²

A simulated iteration has the recorded one's luck: which rank was the slow one, which step. A gain
that is another one in the other step, or without one of the ranks, is not known any better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from statistics import stdev
from typing import Any

UNKNOWN_SPREAD = 0.16
"""Of a gain of which nothing tells the spread: two steps of one window differed by so much."""
_STUDENT = {2: 1.84, 3: 1.32, 4: 1.2, 5: 1.14, 6: 1.11, 7: 1.09, 8: 1.08, 9: 1.07, 10: 1.06}
"""By the number of steps: of so few the standard deviation itself is luck."""


@dataclass(frozen=True, slots=True)
class GainError:
    """The parts of an error, ns.

    Args:
        replay: what the graph misses the recorded iteration by, and what latencies may do.
        steps: standard error of the mean gain over the recorded steps, times Student's t (68 %);
            of one step, which does not tell, what the ranks tell instead.
        ranks: the jackknife's standard error: by how much the gain depends on single ranks; of a
            rank that is given its peers' times also half of what these differ by. None where no
            rank has peers.
        passes: in the graph of spans, the spread of the passes, since other ones come together.
        undisturbed: the part by which the run's iterations without the profiler differ, of the
            gain; None where these are unknown.
        unknown: a flat part of the gain, where neither of those is known.
    """

    replay: float
    steps: float | None = None
    ranks: float | None = None
    passes: float | None = None
    undisturbed: float | None = None
    unknown: float = 0.0

    @property
    def total(self) -> int:
        """All of them together, ns: the root of the sum of their squares."""
        return round(math.hypot(*(getattr(self, one.name) or 0.0 for one in fields(self))))

    def of_run(self, gain_ns: float, spread: float | None) -> GainError:
        """With what the run's own iterations tell.

        Args:
            gain_ns: the gain.
            spread: by which part iterations without the profiler differ; None if that is unknown.
        """
        if spread is not None:
            return replace(self, undisturbed=abs(gain_ns) * spread)
        if self.steps is None and self.ranks is None:
            return replace(self, unknown=abs(gain_ns) * UNKNOWN_SPREAD)
        return self

    def at_least(self, missed_ns: float) -> GainError:
        """The graph's own error is not below this."""
        return replace(self, replay=max(self.replay, missed_ns))

    def times(self, factor: float) -> GainError:
        """Of another amount of training."""
        parts = {one.name: getattr(self, one.name) for one in fields(self)}
        scaled: dict[str, Any] = {
            name: None if ns is None else ns * factor for name, ns in parts.items()
        }
        return GainError(**scaled)


def of_steps(gains: Sequence[float]) -> float | None:
    """Standard error of the mean gain, times Student's t (68 %); None of a single step.

    Args:
        gains: of each step, ns; what is returned is ns too.

    Source: docs/whatif.md, "The error".
    """
    count = len(gains)
    if count < 2:
        return None
    return _STUDENT.get(count, 1.05) * stdev(gains) / math.sqrt(count)


def jackknife(gain: float, without: Sequence[float], others: int = 0) -> float | None:
    """Standard error of a gain over ranks, ns; None of fewer than two.

    Args:
        gain: with all ranks, ns.
        without: the gain with each rank left out, one after the other.
        others: ranks that were not left out since they matter little: as if with all.

    Source: the jackknife, sqrt((n-1)/n sum((g_i - mean)^2)), Efron and Tibshirani 1993, "An
    Introduction to the Bootstrap", chapter 11; docs/whatif.md, "The error".
    """
    count = len(without) + others
    if count < 2:
        return None
    mean = (sum(without) + others * gain) / count
    squares = sum((one - mean) ** 2 for one in without) + others * (gain - mean) ** 2
    return math.sqrt(squares * (count - 1) / count)
