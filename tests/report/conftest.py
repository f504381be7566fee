# SPDX-License-Identifier: Apache-2.0
"""Two recorded jobs, analysed once for all tests of the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.analysis.run.analyse import analyze

SAMPLES = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="session")
def tp2pp2() -> Analysis:
    """Four ranks without spans."""
    return analyze(SAMPLES / "tp2pp2")


@pytest.fixture(scope="session")
def spans() -> Analysis:
    """Two ranks with spans of phases and modules."""
    return analyze(SAMPLES / "pp2-recompute-spans")
