# SPDX-License-Identifier: Apache-2.0
"""GPU rows that are in a trace more than once: work that ran once and must count once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.format.integer_arrays import Ints, distinct


def written_again(
    start: Ints, dur: Ints, track: Ints, name: Ints, correlation: Ints
) -> npt.NDArray[np.bool_]:
    """Which rows are the second, third, ... of their kind, in any order of the file.

    A stream does one thing after another, so that nothing else of the same name and launch has the
    same start and duration there. Only work without any duration can: a graph runs several.
    """
    again = np.zeros(len(start), dtype=bool)
    order = np.argsort(start, kind="stable")
    sorted_start = start[order]
    close = np.flatnonzero(sorted_start[1:] == sorted_start[:-1])
    if not len(close):
        return again
    # Only rows that share their start with a neighbour need sorting by everything.
    rows = order[distinct(np.concatenate((close, close + 1)))]
    columns = (start, dur, track, name, correlation)
    rows = rows[np.lexsort((rows, *(column[rows] for column in columns)))]
    same = dur[rows[1:]] > 0
    for column in columns:
        same &= column[rows[1:]] == column[rows[:-1]]
    again[rows[1:][same]] = True
    return again
