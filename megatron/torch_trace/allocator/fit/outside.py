# SPDX-License-Identifier: Apache-2.0
"""What of a GPU is not torch's: CUDA's context, cuBLAS, NCCL, other processes; from the metrics."""

from __future__ import annotations

from math import isfinite
from pathlib import Path

from megatron.torch_trace.format.file_names import METRICS_FILE
from megatron.torch_trace.format.json_text import value_of

_USED, _RESERVED = "gpu/memory_used_gib", "memory/reserved_gib"
_MOST_BYTES = 64 << 20


def outside_of_torch(folder: Path) -> int | None:
    """Most bytes that the GPU had in use beyond what torch had; None if no metrics tell it."""
    path = folder / METRICS_FILE
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        lines = path.read_text().splitlines()
    except (OSError, ValueError):
        return None
    found = [one for one in map(_of_line, lines) if one is not None]
    return max(found, default=None)


def _of_line(line: str) -> int | None:
    try:
        row = value_of(line)
        used, reserved = float(row[_USED]), float(row[_RESERVED])
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
    outside = (used - reserved) * (1 << 30)
    return round(outside) if isfinite(outside) and outside >= 0 else None
