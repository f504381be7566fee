# SPDX-License-Identifier: Apache-2.0
"""Which tables the analysis of a trace needs, and its first blocks, computed before it asks."""

from __future__ import annotations

import contextlib
from pathlib import Path

from megatron.torch_trace.columns.activity_tables import activity_tables
from megatron.torch_trace.columns.builder import ColumnBuilder, Table
from megatron.torch_trace.columns.slice_events import EventOrSlice
from megatron.torch_trace.reader import Trace, early_blocks
from megatron.torch_trace.reader.trace import Step

# Metadata of traces with shapes, with frames of modules, or with spans of them.
_WITH_OPERATORS = ("record_shapes", "with_stack", "torch_profile")


def tables_of(trace: Trace) -> tuple[Table, ...]:
    """The tables that the analysis of this trace needs."""
    recorded = trace.read_header().entries
    return activity_tables(operators=any(recorded.get(key) for key in _WITH_OPERATORS))


def begin(path: str) -> None:
    """Compute the first blocks of a trace as its analysis will want them; see `early_blocks`.

    Whatever is wrong with the trace, whoever reads it will say so.
    """
    with contextlib.suppress(Exception):
        builder = ColumnBuilder(tables_of(Trace(path)))
        early_blocks.begin(Path(path), Step(builder, EventOrSlice))
