# SPDX-License-Identifier: Apache-2.0
"""What the user's log says, for tests of capture."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from megatron.torch_profile.log import logger


@contextmanager
def lines(level: int) -> Iterator[list[str]]:
    """Lines of the user's log from a level on, as they come."""
    found: list[str] = []
    handler = logging.Handler(level)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)


@pytest.fixture
def said() -> Iterator[list[str]]:
    """Everything the user's log says."""
    with lines(logging.INFO) as found:
        yield found


@pytest.fixture
def warned() -> Iterator[list[str]]:
    """Warnings in the user's log."""
    with lines(logging.WARNING) as found:
        yield found
