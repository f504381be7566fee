# SPDX-License-Identifier: Apache-2.0
"""Many kernels that are shorter than their launch."""

from __future__ import annotations

from collections.abc import Iterator

from megatron.torch_trace.analysis.findings.megatron_flags import flags
from megatron.torch_trace.analysis.findings.shares import (
    computing_kernels,
    known,
    mean_share,
    over,
)
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding
from megatron.torch_trace.wording import counted, percent

SLUG = "tiny_kernels"
_LEAST = 0.5
"""Of the kernels: then it is the rule in this job and not some of its operators."""
_FEWEST = 100
"""Fewer than this cost nothing, whatever share of the kernels they are."""


def rule(analysis: Analysis) -> Iterator[Finding]:
    """Compute kernels under 5 us, if they are the rule."""
    ranks = known(analysis)
    kernels, tiny = computing_kernels(ranks), sum(rank.host.tiny_kernels for rank in ranks)
    if tiny < max(_LEAST * kernels, _FEWEST):
        return
    share = mean_share(ranks, lambda rank: rank.host.tiny_kernels_ns)
    fusions = flags(ranks, "leave the fusions on, and use `--transformer-impl transformer_engine`")
    yield Finding(
        SLUG,
        "low",
        f"{percent(tiny / kernels)} of the {counted(kernels, 'compute kernel')} are shorter than "
        f"5 us, together {percent(share)} of the window ({over(ranks)}).",
        {"kernels": kernels, "kernels_under_5us": tiny, "share": share},
        f"Fuse kernels {fusions}, or compile the model, and use an optimizer that updates all "
        "tensors at once (`fused=True` of torch's, Apex, Transformer Engine).",
        share,
    )
