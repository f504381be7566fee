# SPDX-License-Identifier: Apache-2.0
"""What the calls of a collective are called in a sentence."""

from __future__ import annotations

from megatron.torch_trace.analysis.communication.dimensions import ADJECTIVES

_NOUNS = {
    "allreduce": "all-reduces",
    "allgather": "all-gathers",
    "reduce_scatter": "reduce-scatters",
    "all_to_all": "all-to-alls",
    "barrier": "barriers",
}


def calls_of(dimension: str | None, collective: str | None) -> str:
    """`data-parallel reduce-scatters`; of an unknown dimension without it."""
    kind = ADJECTIVES.get(dimension or "", "")
    return f"{kind} {_NOUNS.get(collective or '', f'{collective} calls')}".strip()
