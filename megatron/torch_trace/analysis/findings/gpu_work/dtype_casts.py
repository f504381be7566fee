# SPDX-License-Identifier: Apache-2.0
"""Kernels that only convert from one type or layout to another."""

from __future__ import annotations

from collections.abc import Iterator

from megatron.torch_trace.analysis.findings.examples import largest
from megatron.torch_trace.analysis.findings.megatron_flags import flags
from megatron.torch_trace.analysis.findings.shares import known, mean_share, over, severity
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding
from megatron.torch_trace.wording import percent

SLUG = "dtype_casts"
_LEAST = 0.03
"""Of the window: an iteration differs from the next by as much."""
_CAST = "aten::_to_copy"


def rule(analysis: Analysis) -> Iterator[Finding]:
    """What torch's operator for conversions launches."""
    ranks = known(analysis)
    share = mean_share(ranks, lambda rank: rank.casts.time_ns)
    if share < _LEAST:
        return
    yield Finding(
        SLUG,
        severity(share),
        f"Conversions by {_CAST} take {percent(share)} of the window ({over(ranks)}).",
        {
            "share": share,
            "calls": sum(rank.casts.calls for rank in ranks),
            "time_ns": {rank.rank: rank.casts.time_ns for rank in ranks},
        },
        "Keep tensors in one type, and use fused kernels that convert on the way "
        f"{flags(ranks, '`--transformer-impl transformer_engine`')}.",
        share,
        largest(
            (row.time_ns, rank.rank, row.longest)
            for rank in analysis.ranks
            for row in rank.operators
            if row.operator == _CAST
        ),
    )
