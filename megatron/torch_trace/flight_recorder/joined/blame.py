# SPDX-License-Identifier: Apache-2.0
"""Who is at fault, and how that is known."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from megatron.torch_trace.flight_recorder.record import Call


class Cause(Enum):
    """Why a rank is at fault; the value is the word in JSON."""

    STOPPED = "stopped"
    NO_FILE = "no_file"
    NOT_IN_A_COLLECTIVE = "not_in_a_collective"
    BEHIND = "gpu_stuck"
    DIFFERENT = "different_call"
    NEVER_CALLED = "never_called"
    LEFT_ORDER = "left_usual_order"


@dataclass(frozen=True, slots=True)
class Blame:
    """A rank that others wait for, by itself.

    Args:
        rank: global rank.
        cause: how it is known.
        call: the call that shows it: of the rank where it is BEHIND, DIFFERENT or LEFT_ORDER,
            else of a rank that waits.
        waits: the ranks that wait in this call.
        usual: of DIFFERENT, what most ranks called instead; of LEFT_ORDER, what the rank usually
            calls there.
    """

    rank: int
    cause: Cause
    call: Call
    waits: tuple[int, ...]
    usual: str = ""
