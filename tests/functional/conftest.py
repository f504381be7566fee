# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the functional tests; what they stand on is in launches.py.

Tests import from there: several folders have a conftest, and only one can have that name.
"""

from launches import launch, wheel_path

__all__ = ["launch", "wheel_path"]
