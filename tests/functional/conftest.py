# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the functional tests; what they stand on is in launches.py.

Tests import from there: several folders have a conftest, and only one can have that name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from functools import cache

import pytest
from launches import Launch, launch, read_outputs, wheel_path
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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a launch printed stands below a test that failed, whichever test has launched it."""
    report = yield
    if report.failed:
        for run in read_outputs:
            without_arguments = re.sub(r"(?m)^  \w+ \.+ .*\n", "", run.printed)
            report.sections.append(("what a launch printed", without_arguments))
    if call.when == "teardown":
        read_outputs.clear()
    return report
