# SPDX-License-Identifier: Apache-2.0
"""A kernel that does in many passes what its fused form does in one."""

from __future__ import annotations

from collections.abc import Iterator

from megatron.torch_trace.analysis.results.analysis import Analysis, Finding

SLUG = "fused_kernels_refused"


def rule(analysis: Analysis) -> Iterator[Finding]:
    """One for all ranks, by what capture counted."""
    ranks = [rank for rank in analysis.ranks if rank.compile.get(SLUG)]
    if ranks:
        yield Finding(
            SLUG,
            "medium",
            f"A fused kernel refused its inputs, for instance a weight in fp32 under activations "
            f"in bf16 ({ranks[0].name}{', ...' if len(ranks) > 1 else ''}).",
            {SLUG: {rank.rank: rank.compile[SLUG] for rank in ranks}},
            "Give weights and activations one type, or use Transformer Engine's or Apex's norm; "
            "torch's warning in the log of that rank names the types.",
        )
