# SPDX-License-Identifier: Apache-2.0
"""Small traces by hand, as Python values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]
CPU, GPU = 42, 0
MAIN = 42


def op(name: str, ts: float, dur: float, **more: Any) -> Event:
    """An operator on the main thread; times in us."""
    event = {"ph": "X", "cat": "cpu_op", "name": name, "pid": CPU, "tid": MAIN}
    return {**event, "ts": ts, "dur": dur, **more}


def instant(name: str, ts: float, **more: Any) -> Event:
    return {"ph": "i", "s": "t", "name": name, "pid": CPU, "tid": MAIN, "ts": ts, **more}


def named(name: str) -> Event:
    """What the main thread is called."""
    return {"ph": "M", "name": "thread_name", "pid": CPU, "tid": MAIN, "args": {"name": name}}


def launch(ts: float, dur: float, correlation: int) -> Event:
    """A call that puts a kernel on the GPU, with the start of the arrow to it."""
    return op("cudaLaunchKernel", ts, dur, cat="cuda_runtime", args={"correlation": correlation})


def kernel(
    name: str, ts: float, dur: float, correlation: int, *, stream: int = 7, **args: Any
) -> Event:
    return op(
        name, ts, dur, cat="kernel", pid=GPU, tid=stream,
        args={"device": GPU, "stream": stream, "correlation": correlation, **args},
    )  # fmt: skip


def mark(name: str, ts: float, dur: float, *, stream: int = 7) -> Event:
    """An annotation on the GPU."""
    return op(name, ts, dur, cat="gpu_user_annotation", pid=GPU, tid=stream)


def step(number: int, ts: float, dur: float) -> Event:
    return op(f"ProfilerStep#{number}", ts, dur, cat="user_annotation")


def arrow(number: int | str, start: Event, end: Event, cat: str = "ac2g") -> list[Event]:
    """Both ends, each where a slice begins."""
    return [
        {"ph": phase, "id": number, "cat": cat, "name": cat, "bp": "e",
         "pid": one["pid"], "tid": one["tid"], "ts": one["ts"]}
        for phase, one in (("s", start), ("f", end))
    ]  # fmt: skip


def write(path: Path, *events: Event | list[Event], rank: int | None = 0, **more: Any) -> Path:
    """A file of one rank."""
    flat = [one for some in events for one in (some if isinstance(some, list) else [some])]
    document: dict[str, Any] = {"schemaVersion": 1, "displayTimeUnit": "ms", **more}
    if rank is not None:
        document["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 4}
    path.write_text(json.dumps(document | {"traceEvents": flat}))
    return path
