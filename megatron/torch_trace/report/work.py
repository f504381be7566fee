# SPDX-License-Identifier: Apache-2.0
"""The tables of GPU work: families, kernels, operators, shapes."""

from __future__ import annotations

import json

from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.analysis.results.summary import WorkSummary
from megatron.torch_trace.analysis.timeline.kernel_names import distinct_names
from megatron.torch_trace.report.table import table
from megatron.torch_trace.report.text_sections import means
from megatron.torch_trace.wording import NONE, count, milliseconds, percent


def tables(analysis: Analysis, width: int, top: int) -> list[str]:
    """Families, kernels, operators, shapes."""
    summary = analysis.summary
    if not summary.kernels:
        return []
    what = means(analysis)
    lines = [f"GPU WORK BY FAMILY ({what})"]
    lines += table(
        ("<family", "calls", "ms", "share"),
        [_line(row, row.name)[:4] for row in summary.families[: max(top, 8)]],
        width,
    )
    top_kernels = summary.kernels[:top]
    names = distinct_names([row.name for row in top_kernels])
    lines += ["", f"TOP KERNELS ({what})"]
    lines += table(
        ("<~kernel", "<family", "calls", "ms", "share", "mean us"),
        [_line(row, name, row.detail) for name, row in zip(names, top_kernels, strict=True)],
        width,
    )
    lines += ["", f"TOP OPERATORS by the GPU work they launched ({what})"]
    lines += table(
        ("<operator", "kernels", "ms", "share", "mean us"),
        [_line(row, row.name) for row in summary.operators[:top]],
        width,
    )
    if summary.shapes:
        lines += ["", f"TOP SHAPES ({what})"]
        lines += table(
            ("<~shape", "<operator", "kernels", "ms", "share", "mean us"),
            [_line(row, shape_in_words(row.detail), row.name) for row in summary.shapes[:top]],
            width,
        )
    return lines


def _line(row: WorkSummary, *names: str) -> list[str]:
    return [
        *names,
        count(row.calls),
        milliseconds(row.time_ns),
        percent(row.share),
        f"{row.mean_ns / 1e3:,.1f}",
    ]


def shape_in_words(text: str) -> str:
    """`[[2048, 2048], [2048, 8192], []]` -> `2048x2048, 2048x8192`; scalars are left out."""
    if not text:
        return NONE
    try:
        sizes = json.loads(text)
    except ValueError:
        return text
    parts = [_dims(one) for one in sizes if one]
    return ", ".join(parts) or "scalars"


def _dims(sizes: object) -> str:
    if isinstance(sizes, list) and sizes and isinstance(sizes[0], list):
        return f"[{', '.join(_dims(one) for one in sizes)}]"
    return "x".join(map(str, sizes)) if isinstance(sizes, list) else str(sizes)
