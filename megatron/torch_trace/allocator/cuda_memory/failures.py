# SPDX-License-Identifier: Apache-2.0
"""Requests that the GPU had no memory for: of the history, else of what capture wrote beside it.

rank-0.iter-0000001.memory_snapshot.pickle
rank-0.iter-0000001.live_bytes.json             what `--torch-profile-on-oom` saw
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from megatron.torch_trace.allocator.snapshot import Action, History, Snapshot
from megatron.torch_trace.allocator.stack_table import Stack, shortened
from megatron.torch_trace.files.json_object import read_object

_SNAPSHOT, _LIVE_BYTES = ".memory_snapshot.pickle", ".live_bytes.json"


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """A request that the GPU had no memory for.

    Args:
        time: ns since 1970; 0 where it is not known.
        requested: bytes.
        device_free: bytes that CUDA said were free.
        stack: who asked, the innermost frame first.
        where: iteration, phase and module in words; empty where capture did not tell them.
    """

    time: int
    requested: int
    device_free: int
    stack: Stack
    where: str = ""


def failures_of(snapshot: Snapshot, history: History, device: int) -> tuple[OutOfMemory, ...]:
    """The requests of one device that failed, the last one last.

    Args:
        snapshot: of the process.
        history: of this device alone.
        device: index.
    """
    seen = _beside(snapshot.path, device)
    rows = np.flatnonzero(history.action == Action.OOM).tolist()
    found = [
        OutOfMemory(
            time=int(history.time[row]),
            requested=int(history.size[row]),
            device_free=int(history.address[row]),
            stack=shortened(snapshot.stacks.python(int(history.stack[row]))),
            where=seen.where if seen and row == rows[-1] else "",
        )
        for row in rows
    ]
    return tuple(found) or ((seen,) if seen else ())


def live_bytes_beside(snapshot: Path) -> dict[str, Any]:
    """What capture wrote of an out-of-memory error beside its snapshot; {} of other snapshots."""
    stem, found, _ = snapshot.name.partition(_SNAPSHOT)
    if found:
        with suppress(OSError, ValueError):
            return read_object(snapshot.with_name(stem + _LIVE_BYTES))
    return {}


def _beside(snapshot: Path, device: int) -> OutOfMemory | None:
    seen = live_bytes_beside(snapshot)
    requested, free = seen.get("requested_bytes"), seen.get("free_bytes")
    if type(requested) is not int or type(free) is not int or seen.get("device") != device:
        return None
    stack = seen.get("stack")
    frames = [one for one in stack if isinstance(one, str)] if isinstance(stack, list) else []
    iteration = seen.get("iteration")
    parts = [f"iteration {iteration}" if type(iteration) is int else ""]
    parts += [text for name in ("phase", "module") if isinstance(text := seen.get(name), str)]
    return OutOfMemory(0, requested, free, shortened(frames), ", ".join(filter(None, parts)))
