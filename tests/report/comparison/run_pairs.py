# SPDX-License-Identifier: Apache-2.0
"""Two runs that are compared, and what a figure of their changes says."""

from __future__ import annotations

from pathlib import Path

from megatron.torch_trace.analysis.compare.comparison import Comparison, compare
from megatron.torch_trace.analysis.run.analyse import analyze
from megatron.torch_trace.report.comparison.change_icicle import ChangeFigure


def compared(a: Path, b: Path) -> Comparison:
    return compare(analyze(a, jobs=1), analyze(b, jobs=1))


def told(figure: ChangeFigure | None) -> dict[str, tuple[str, str]]:
    """What a part is of -> its (kind, label)."""
    assert figure is not None
    return {one.told.split(": ")[0]: (one.kind, one.label) for one in figure.parts}
