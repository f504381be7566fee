# SPDX-License-Identifier: Apache-2.0
"""The toy without a profiler, once for all tests that compare losses with it."""

from __future__ import annotations

import pytest
from toy_runs import losses, run


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Losses of the toy when nobody profiles."""
    status, output = run(tmp_path_factory.mktemp("plain"), "--unprofiled")
    assert status == 0, output
    return losses(output)
