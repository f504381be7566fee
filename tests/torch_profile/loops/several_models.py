# SPDX-License-Identifier: Apache-2.0
"""Models of a loop with several, and what a trace has of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from attached_training import read

from megatron import torch_profile
from megatron.torch_trace.analysis.timeline.span_names import is_collection


def spans(trace: Path) -> list[str]:
    """Of phases and steps, in their order; Python collects garbage when it wants to."""
    events = [
        event
        for event in read(trace)["traceEvents"]
        if event.get("cat") == "user_annotation"
        and "Optimizer." not in event["name"]
        and not is_collection(event["name"])
    ]
    events.sort(key=lambda event: (float(event["ts"]), -float(event["dur"])))
    return [event["name"] for event in events]


def train(loop: Callable[[], None], iterations: int = 3) -> None:
    for _ in range(iterations):
        with torch_profile.step():
            loop()
