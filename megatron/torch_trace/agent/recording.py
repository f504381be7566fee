# SPDX-License-Identifier: Apache-2.0
"""What is known of the window that is served: read once, and nothing else is ever read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from megatron.torch_trace.allocator.ranks.analysed import analyze
from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult
from megatron.torch_trace.analysis.run.whatif import WhatIf, whatif
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.wording import listed


@dataclass
class Recording:
    """One window.

    Args:
        path: a trace, or the folder of a window; fixed when the server starts.
    """

    path: Path

    @cached_property
    def analysis(self) -> Analysis:
        """With gains, where these are cheap."""
        return analyze(self.path, gains=None)

    @cached_property
    def prediction(self) -> WhatIf:
        """The iteration as recorded: critical path, slack, changes that may be worth it."""
        return whatif(self.path)

    def rank(self, number: int) -> RankResult:
        """One rank.

        Raises:
            UsageError: there is none of this number.
        """
        for one in self.analysis.ranks:
            if one.rank == number:
                return one
        there = listed([one.rank for one in self.analysis.ranks])
        raise UsageError(f"rank {number}: there is no trace of this rank; there are {there}.")
