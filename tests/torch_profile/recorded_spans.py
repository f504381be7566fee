# SPDX-License-Identifier: Apache-2.0
"""Records a block on the CPU and hands out the annotations that it left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from megatron.torch_trace.rewrite.backward_spans.stream import with_backward_spans


def _fail(error: Exception) -> None:
    raise error


@contextmanager
def recorded(path: Path, *, draw: bool = False) -> Iterator[list[tuple[str, int]]]:
    """Filled, at the end, with every annotation and how deep it lies, in order of time.

    Args:
        path: where the trace goes.
        draw: whether the backward spans of modules are drawn into it.
    """
    found: list[tuple[str, int]] = []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        yield found
    profiler.export_chrome_trace(str(path))
    if draw:
        pieces = with_backward_spans([path.read_bytes()], _fail)
        path.write_bytes(b"".join(piece.text for piece in pieces))
    events = [
        (float(e["ts"]), -float(e["dur"]), e["name"])
        for e in json.loads(path.read_text())["traceEvents"]
        if e.get("cat") == "user_annotation"
    ]
    ends: list[float] = []
    for start, negative, name in sorted(events):
        while ends and ends[-1] <= start:
            ends.pop()
        assert not ends or start - negative <= ends[-1], f"{name} crosses the span around it"
        found.append((name, len(ends)))
        ends.append(start - negative)


def events_of(path: Path, category: str, name: str | None = None) -> list[dict[str, Any]]:
    """Events of a recorded trace."""
    return [
        event
        for event in json.loads(path.read_text())["traceEvents"]
        if event.get("cat") == category and name in (None, event["name"])
    ]
