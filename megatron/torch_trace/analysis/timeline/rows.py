# SPDX-License-Identifier: Apache-2.0
"""Columns that tables of a rank have in common, with nothing that reads a trace."""

from __future__ import annotations

from dataclasses import dataclass

from megatron.torch_trace.columns.intervals import Ints

NONE = -1
"""In a column: the trace does not say."""


@dataclass(slots=True)
class Rows:
    """Columns of every table.

    Args:
        start, end: ns, half-open.
        name: code into `Activity.names`.
        track: code into `Activity.tracks`.
    """

    start: Ints
    end: Ints
    name: Ints
    track: Ints

    def __len__(self) -> int:
        return len(self.start)


@dataclass(slots=True)
class Numbered(Rows):
    """Operators with autograd's numbers, sorted by start, the longer one first.

    Args:
        sequence: of the node that the operator makes or runs, NONE if none.
        forward_thread: 0 in the forward pass; in the backward pass torch's number, from 1, of the
            thread that made the node; NONE if not recorded.
    """

    sequence: Ints
    forward_thread: Ints
