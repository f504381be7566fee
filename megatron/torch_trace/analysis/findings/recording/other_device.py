# SPDX-License-Identifier: Apache-2.0
"""A device whose work is not analysed: what there is of it, and what can be said."""

from __future__ import annotations

from collections.abc import Iterator

from megatron.torch_trace.analysis.results.analysis import Analysis, Finding

SLUG = "other_device"


def rule(analysis: Analysis) -> Iterator[Finding]:
    """One for all ranks, in the words of the first."""
    found = [rank for rank in analysis.ranks if rank.other_device]
    if not found:
        return
    yield Finding(
        SLUG,
        "info",
        str(found[0].other_device).replace("The trace", f"The trace of {found[0].name}", 1),
        {"ranks": [rank.rank for rank in found]},
        "Look at the device's rows in the timeline (`torch-trace view`), and take its load from "
        "its maker's own tools.",
    )
