# SPDX-License-Identifier: Apache-2.0
"""The two graphs of a recording, each made when it is first asked for."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from megatron.torch_trace.analysis.replay.answers import Graph, UnreplayableError
from megatron.torch_trace.analysis.replay.change import Change, StagesBalanced, VirtualStages
from megatron.torch_trace.analysis.replay.spans.span_replay import SpanReplay
from megatron.torch_trace.analysis.run.analyse import Recorded

KERNELS, SPANS = "kernels", "spans"


class Graphs:
    """The graph of kernels and the graph of spans of the same ranks.

    Args:
        known: the ranks.
    """

    def __init__(self, known: Recorded) -> None:
        self._known = known
        self._spans: SpanReplay | UnreplayableError | None = None
        self.notes: list[str] = []

    def spans(self) -> SpanReplay:
        """The graph of spans.

        Raises:
            UnreplayableError: the traces do not hold what it needs.
        """
        if self._spans is None:
            outcomes = self._known.by_rank.values()
            try:
                self._spans = SpanReplay.of([(one.result, one.calls) for one in outcomes])
            except UnreplayableError as error:
                self._spans = error
        if isinstance(self._spans, UnreplayableError):
            raise self._spans
        return self._spans

    def for_changes(self, changes: Sequence[Change]) -> tuple[str, Graph]:
        """Name and graph that answer these changes.

        Raises:
            UnreplayableError: the traces do not hold what it needs.
        """
        if any(not one.of_spans for one in changes):
            raise UnreplayableError(
                f"{changes[0].text}: the graph of kernels cannot be made of these traces."
            )
        return SPANS, self.spans()

    def proposals(self) -> list[tuple[Change, str | None]]:
        """Changes that may be worth it, with the finding that each is about."""
        found: list[tuple[Change, str | None]] = []
        with suppress(UnreplayableError):
            found += [(one, _finding(one)) for one in self.spans().candidates()]
        return found

    def ranks_of(self, name: str) -> Sequence[int]:
        """The ranks in a graph."""
        return list(self._known.by_rank)

    def inferred_edges(self, name: str) -> int:
        """Dependencies of a graph that the traces do not tell."""
        return 0

    def slack(self, name: str) -> list[tuple[int, int]]:
        """By rank, ns; see `WhatIf`."""
        return self.spans().slack()


def _finding(change: Change) -> str | None:
    if isinstance(change, VirtualStages):
        return "pipeline_bubble"
    return "uneven_stages" if isinstance(change, StagesBalanced) else None
