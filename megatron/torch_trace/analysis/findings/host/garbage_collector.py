# SPDX-License-Identifier: Apache-2.0
"""Python's collector of cycles: it stops one CPU after the other, each in another iteration."""

from __future__ import annotations

from collections.abc import Sequence

from megatron.torch_trace.analysis.findings.megatron_flags import flags, has_flag
from megatron.torch_trace.analysis.results.analysis import RankResult

_FLAG = "--manual-gc"


def for_collector(ranks: Sequence[RankResult]) -> str:
    """What to look at, with the flag against it; "" where that flag is given already."""
    if has_flag(ranks, _FLAG):
        return ""
    return f"Python's garbage collector {flags(ranks, f'`{_FLAG}`')}"
