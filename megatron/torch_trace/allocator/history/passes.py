# SPDX-License-Identifier: Apache-2.0
"""Forwards and backwards of micro-batches, as the marks in a snapshot tell them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from megatron.torch_trace.allocator.snapshot import Annotation
from megatron.torch_trace.analysis.timeline.span_names import microbatch_span


@dataclass(slots=True)
class MicrobatchPass:
    """A micro-batch's forward or backward, from its first turn to its last.

    Args:
        name: of its first turn.
        direction: forward or backward.
        number: of the micro-batch; None where the mark has none.
        start: ns since 1970.
        end: None where it had not ended.
    """

    name: str
    direction: str
    number: int | None
    start: int
    end: int | None


def passes_of(annotations: Iterable[Annotation]) -> list[MicrobatchPass]:
    """The marked passes: turns with another micro-batch are one pass, from first to last.

    Iterations use the numbers of micro-batches again, but a micro-batch's next forward comes only
    after its backward.
    """
    passes: list[MicrobatchPass] = []
    latest: dict[tuple[int | None, int | None, str | None], MicrobatchPass] = {}
    for one in sorted(annotations, key=lambda one: one.start):
        span = microbatch_span(one.name)
        if span is None:
            continue
        key = (span.number, span.chunk, span.model)
        before = latest.get(key)
        if span.is_part and before and before.direction == span.direction:
            before.end = one.end
            continue
        found = MicrobatchPass(one.name, span.direction, span.number, one.start, one.end)
        latest[key] = found
        passes.append(found)
    return passes
