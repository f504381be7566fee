# SPDX-License-Identifier: Apache-2.0
"""Recorded traces: the project's own samples, and more where the machine has them."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "tests" / "data"
SHARED = ROOT.parent / "shared" / "data"
FAULTS = SAMPLES / "faults"
_LEFT_OUT = ("dp4-large", "faults")


def recorded() -> list[Path]:
    """Every trace that is there, but the one for benchmarks and those made to be wrong."""
    found = sorted(SAMPLES.rglob("*.json.gz"))
    if SHARED.is_dir():
        found += sorted(SHARED.rglob("*.json.gz"))
    return [path for path in found if path.parent.name not in _LEFT_OUT]


def label(path: Path) -> str:
    return f"{path.parent.name}/{path.name.split('.')[0]}"
