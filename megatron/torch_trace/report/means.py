# SPDX-License-Identifier: Apache-2.0
"""What the numbers of a table are means over, for its heading."""

from __future__ import annotations

from megatron.torch_trace.analysis.results.analysis import Analysis


def over_ranks(analysis: Analysis) -> str:
    """In a caption: `means over 4 ranks`."""
    ranks = len(analysis.ranks)
    return "of one rank" if ranks == 1 else f"means over {ranks:,} ranks"


def of_ranks(analysis: Analysis) -> str:
    """On a terminal, with the unit: `ms, mean of 4 ranks`."""
    return "ms" if len(analysis.ranks) == 1 else f"ms, mean of {len(analysis.ranks)} ranks"
