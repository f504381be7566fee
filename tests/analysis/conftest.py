# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest
from recorded_traces import SAMPLES, SHARED


@pytest.fixture
def samples() -> Path:
    return SAMPLES


@pytest.fixture
def shared() -> Path:
    if not SHARED.is_dir():
        pytest.skip("the repository does not hold large recordings, nor does ../shared/data")
    return SHARED
