# SPDX-License-Identifier: Apache-2.0
"""Traces by hand: the one builder of all tests, as text that Kineto would write.

`events` has one function for each kind of event, `documents` puts events into a file, and
`TraceBuilder` adds events one after the other and counts correlations.

A time is a number of ns from the start of the trace, or text that stands in the file as it is.
"""

from __future__ import annotations

from trace_builder.documents import (
    HEADER,
    TAIL,
    header,
    names,
    read,
    strict,
    text,
    values,
    write,
    write_rank,
)
from trace_builder.events import (
    BACKWARD,
    CPU,
    GPU,
    LOOP,
    annotation,
    arrow,
    arrow_end,
    call,
    collective_args,
    counter,
    event,
    instant,
    kernel,
    launch,
    mark,
    metadata,
    op,
    step,
)
from trace_builder.trace import BASE, GEMM, NCCL, SENDRECV, TraceBuilder

__all__ = [
    "BACKWARD",
    "BASE",
    "CPU",
    "GEMM",
    "GPU",
    "HEADER",
    "LOOP",
    "NCCL",
    "SENDRECV",
    "TAIL",
    "TraceBuilder",
    "annotation",
    "arrow",
    "arrow_end",
    "call",
    "collective_args",
    "counter",
    "event",
    "header",
    "instant",
    "kernel",
    "launch",
    "mark",
    "metadata",
    "names",
    "op",
    "read",
    "step",
    "strict",
    "text",
    "values",
    "write",
    "write_rank",
]
