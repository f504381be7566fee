# SPDX-License-Identifier: Apache-2.0
"""Megatron's wheels, and HTA, each in a folder of .wheels without what it depends on: wheels.py

scripts/test.sh runs this while .venv is filled; what is missing then is installed by the tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
WHEELS = ("0.17.0", "0.18.2", "0.19.2")
HTA = ("HolisticTraceAnalysis==0.5.0", "pandas<3", "plotly", "narwhals", "networkx")
HTA += ("psutil", "pyyaml", "python-dateutil", "pytz", "six")


def megatron(version: str) -> Path:
    """Folder of a Megatron wheel."""
    return _installed(version, f"megatron-core=={version}")


def hta() -> Path:
    """Folder of HTA, which needs another pandas than the project, and far more than it imports."""
    return _installed("hta", *HTA)


def _installed(name: str, *packages: str) -> Path:
    target = ROOT / ".wheels" / name
    if not target.is_dir():
        temporary = target.with_name(f"{name}.{os.getpid()}.tmp")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--target", str(temporary), *packages], check=True)
        try:
            temporary.rename(target)
        except OSError:  # another process was faster
            if not target.is_dir():
                raise
            shutil.rmtree(temporary)
    return target


if __name__ == "__main__":
    hta()
    for _version in WHEELS:
        megatron(_version)
