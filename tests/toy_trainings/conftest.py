# SPDX-License-Identifier: Apache-2.0
"""A Python that has imported torch, and losses of the toy without a profiler: once for all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from toy_runs import losses, run, started_at_once


@pytest.fixture(scope="session", autouse=True)
def _warm_torch() -> Iterator[None]:
    with started_at_once():
        yield


@pytest.fixture(scope="session")
def plain(_warm_torch: None, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Losses of the toy when nobody profiles."""
    status, output = run(tmp_path_factory.mktemp("plain"), "--unprofiled")
    assert status == 0, output
    return losses(output)
