# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the SLURM tests; what they stand on is in slurm_cluster.py and slurm_scenarios.py."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import warm_child
from slurm_cluster import Cluster, why_not_here
from slurm_scenarios import TINY, Scenarios
from warm_python import LIBRARIES


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
def warm_slurm_python() -> Iterator[str]:
    """What ranks are forks of; without what slow_pretrain_gpt.py leaves out."""
    left_out = ("transformers", "wandb")
    libraries = [name for name in LIBRARIES if name not in left_out]
    environment = {**os.environ, **TINY, "OMP_NUM_THREADS": "1"}
    with warm_child.warm_python(environment, libraries) as warm:
        yield str(warm.command)


@pytest.fixture(scope="session")
def scenarios(
    cluster: Cluster,
    warm_slurm_python: str,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Scenarios]:
    """What befalls jobs, several at a time; a test waits for the one it is about."""
    scenarios = Scenarios(cluster, tmp_path_factory.mktemp("jobs"), warm_slurm_python)
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
