# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the SLURM tests; what they stand on is in slurm_cluster.py and slurm_scenarios.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from slurm_cluster import Cluster, why_not_here
from slurm_scenarios import Scenarios


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Two nodes, up for all tests of the session."""
    reason = why_not_here()
    if reason:
        pytest.skip(reason)
    # Not below pytest's own folder, which is closed to others: munged insists on an open one.
    with TemporaryDirectory(prefix="slurm-") as folder:
        cluster = Cluster(Path(folder))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


@pytest.fixture(scope="session")
def scenarios(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Scenarios]:
    """What befalls jobs, several at a time; a test waits for the one it is about."""
    scenarios = Scenarios(cluster, tmp_path_factory.mktemp("jobs"))
    asked = {
        item.callspec.params["scenario"]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and hasattr(item, "callspec")
        and "scenario" in item.callspec.params
    }
    scenarios.begin(asked)
    yield scenarios
    scenarios.cancel()
