# SPDX-License-Identifier: Apache-2.0
"""What a folder holds."""

from __future__ import annotations

from pathlib import Path


def files_below(folder: Path) -> list[str]:
    """Paths of all files below a folder, from there."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
