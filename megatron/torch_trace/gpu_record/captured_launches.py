# SPDX-License-Identifier: Apache-2.0
"""Launches into a CUDA graph that was being captured, in words."""

from __future__ import annotations

from collections.abc import Sequence

from megatron.torch_trace.wording import counted, ranks


def captured_sentence(launches: int, steps: Sequence[int]) -> str:
    """What a capture means for the reader.

    Args:
        launches: into graphs.
        steps: numbers of the steps in which they were; empty where no steps are marked.
    """
    where = "in the window"
    if steps:
        where = f"in step{'s' * (len(steps) > 1)} {ranks(tuple(steps))}"
    many = "run" if launches > 1 else "runs"
    into = counted(launches, "launch", "launches")
    return f"A CUDA graph was captured {where}: {into} into the graph {many} nothing yet."
