# SPDX-License-Identifier: Apache-2.0
"""One telling example of what a row of a table sums up, to be looked at in a timeline.

In the rows it takes no part in comparisons: where to look is no part of what a row says.
"""

from __future__ import annotations

from dataclasses import dataclass

from megatron.torch_trace.columns.intervals import Ints


@dataclass(frozen=True, slots=True)
class Moment:
    """Where to look: `start_ns` is ns since the base time of the rank's trace."""

    start_ns: int
    duration_ns: int


Example = tuple[int, Moment]
"""A rank, and a moment of its trace."""


def longest(start: Ints, end: Ints) -> Moment | None:
    """The longest of these intervals, of several the first; None if there is none."""
    if not len(start):
        return None
    at = int((end - start).argmax())
    return Moment(int(start[at]), int(end[at] - start[at]))
