# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the functional tests; what they stand on is in launches.py.

Tests import from there: several folders have a conftest, and only one can have that name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from launches import Launch, launch, wheel_path
from trainings import Trainings

__all__ = ["launch", "trainings", "wheel_path"]


@pytest.fixture(scope="session")
def trainings(
    launch: Launch, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Trainings]:
    """The trainings of a version of Megatron."""
    return cache(
        lambda version: Trainings(version, launch, tmp_path_factory.mktemp(f"megatron-{version}"))
    )
