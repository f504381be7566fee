# SPDX-License-Identifier: Apache-2.0
"""How far the report or a timeline is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

WORKING, READY, FAILED = "converting", "ready", "failed"


class StoppedError(Exception):
    """Nobody wants it any more: leave the work, remove what is half written."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one of them is.

    Args:
        state: `converting`, `ready` or `failed`.
        message: what is being done, or why it failed; a sentence.
        offset_ns: of a timeline that is ready: rank -> what is added to ns of its trace.
    """

    state: str
    message: str
    offset_ns: Mapping[int, int] = field(default_factory=dict)
