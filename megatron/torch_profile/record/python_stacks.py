# SPDX-License-Identifier: Apache-2.0
"""Python stacks in traces: with which Python and torch they end the process, or have holes."""

from __future__ import annotations

import re
from collections.abc import Sequence

_CRASHES_FROM_PYTHON, _CRASHES_BEFORE_TORCH = (3, 13), (2, 8)
"""pytorch/pytorch#144094, #148273: a segmentation fault while Python frames are recorded."""
_LOSES_CALLS_FROM_PYTHON, _LOSES_CALLS_BEFORE_PYTHON = (3, 12), (3, 12, 5)
"""pytorch/pytorch#155446: these Pythons report fewer calls of C functions than returns."""


def crash(python: Sequence[int], torch: str) -> bool:
    """Whether recording stacks may end the process.

    Args:
        python: its version, from the major number on.
        torch: its version, such as `2.6.0+cu124`.
    """
    numbers = tuple(int(number) for number in re.findall(r"\d+", torch)[:2])
    return tuple(python) >= _CRASHES_FROM_PYTHON and numbers < _CRASHES_BEFORE_TORCH


def trouble(python: Sequence[int], torch: str) -> str | None:
    """What the user of `--torch-profile-with-stack` should know, in one sentence; None if nothing.

    Args:
        python: its version, from the major number on.
        torch: its version.
    """
    version = ".".join(map(str, python[:3]))
    if crash(python, torch):
        return (
            f"torch {torch} crashes when it records stacks under Python {version}, so traces will "
            "hold none; take torch 2.8 or newer, or Python 3.12"
        )
    if _LOSES_CALLS_FROM_PYTHON <= tuple(python) < _LOSES_CALLS_BEFORE_PYTHON:
        return (
            f"Python {version} does not report some calls of C functions, so stacks will have "
            "holes; take Python 3.12.5 or newer"
        )
    return None
