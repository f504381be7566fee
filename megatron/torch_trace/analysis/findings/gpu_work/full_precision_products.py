# SPDX-License-Identifier: Apache-2.0
"""Matrix products in fp32 that do not use the tensor cores."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from megatron.torch_trace.analysis.findings.examples import largest
from megatron.torch_trace.analysis.findings.megatron_flags import flags
from megatron.torch_trace.analysis.findings.shares import known, mean_share, over, severity
from megatron.torch_trace.analysis.gpu_work.kernels import KernelRow
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding, RankResult
from megatron.torch_trace.analysis.timeline.kernel_names import COMPUTE
from megatron.torch_trace.wording import percent

SLUG = "full_precision_products"
_LEAST = 0.03
"""Of the window: an iteration differs from the next by as much."""
_SIMT = re.compile(r"(?:\b|_)sgemm(?:\b|_)|(?:\b|_)gemm_f32f32_f32f32_f32(?:\b|_)")
"""How cuBLAS and CUTLASS name products of fp32 outside of the tensor cores; those in TF32 are
named `s1688gemm` or `gemm_f32f32_tf32f32_f32`."""


def rule(analysis: Analysis) -> Iterator[Finding]:
    """All of them together, and the kernel that takes most time."""
    ranks = known(analysis)
    share = mean_share(ranks, _time)
    if share < _LEAST:
        return
    rows = [(rank, row) for rank in ranks for row in rank.kernels if _is_simt(row)]
    name = max(rows, key=lambda one: one[1].time_ns)[1].name
    yield Finding(
        SLUG,
        severity(share),
        f"Matrix products in fp32 take {percent(share)} of the window ({over(ranks)}) and do not "
        f"use the tensor cores, most of that time in {name}.",
        {
            "share": share,
            "name": name,
            "calls": sum(row.calls for _, row in rows),
            "time_ns": {rank.rank: _time(rank) for rank in ranks},
        },
        f"Compute in bf16 {flags(ranks, '`--bf16`')}; where it must be fp32, allow TF32 "
        '(`torch.set_float32_matmul_precision("high")`, Ampere on). The operators that launch them '
        "are in `--json`: often a router, a loss or an optimizer that is kept in fp32.",
        share,
        largest((row.time_ns, rank.rank, row.longest) for rank, row in rows),
    )


def _time(rank: RankResult) -> int:
    return sum(row.time_ns for row in rank.kernels if _is_simt(row))


def _is_simt(row: KernelRow) -> bool:
    return row.kind == COMPUTE and _is_named_so(row.name)


@lru_cache(maxsize=4096)
def _is_named_so(name: str) -> bool:
    # Thousands of ranks have the same kernels, whose names are long.
    return _SIMT.search(name.lower()) is not None
