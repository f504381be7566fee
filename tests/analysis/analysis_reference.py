# SPDX-License-Identifier: Apache-2.0
"""The definitions once more, as slow and as obvious as they can be: no numpy, no reader of ours.

Everything is read with `json`, times are integers from text, sets of time are sorted lists.
"""

from __future__ import annotations

import gzip
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

Pairs = list[tuple[int, int]]

COMMUNICATION = ("nccl", "rccl", "multimem_all_reduce", "nvshmem")
GPU_WORK = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}


def breakdown(path: Path) -> dict[str, Any]:
    """Window, the four parts, communication and steps of a trace, in ns."""
    events = _events(path)
    steps = _steps(events)
    work = [e for e in events if _category(e) in GPU_WORK]
    devices = {e["args"].get("device", e["pid"]) for e in work}
    device = max(
        sorted(devices), key=lambda d: sum(_dur(e) for e in work if _device(e) == d), default=None
    )
    work = [e for e in work if _device(e) == device]
    start, end = _window(events, steps, work)
    communication, compute, memory = [], [], []
    for event in work:
        span = (max(event["ts"], start), min(event["ts"] + _dur(event), end))
        if "mem" in _category(event):
            memory.append(span)
        elif "Collective name" in event["args"] or any(
            word in event["name"].lower() for word in COMMUNICATION
        ):
            communication.append(span)
        else:
            compute.append(span)
    bounds = [(start, end)]
    begins = [s for _, s, _ in steps]
    if steps:
        bounds += list(zip(begins, [*begins[1:], end], strict=True))
    parts = [_parts(union(communication), union(compute), union(memory), b) for b in bounds]
    return {
        "window": end - start,
        "communication": length(union(communication)),
        "breakdown": parts[0],
        "steps": [(number, part) for (number, _, _), part in zip(steps, parts[1:], strict=True)],
    }


def union(spans: Pairs) -> Pairs:
    result: list[list[int]] = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if result and start <= result[-1][1]:
            result[-1][1] = max(result[-1][1], end)
        else:
            result.append([start, end])
    return [(start, end) for start, end in result]


def minus(spans: Pairs, others: Pairs) -> Pairs:
    """Both must be unions."""
    result = []
    first = 0
    for start, end in spans:
        while first < len(others) and others[first][1] <= start:
            first += 1
        at = start
        for low, high in others[first:]:
            if low >= end:
                break
            if low > at:
                result.append((at, low))
            at = max(at, high)
        if at < end:
            result.append((at, end))
    return result


def length(spans: Pairs) -> int:
    return sum(end - start for start, end in spans)


def clip(spans: Pairs, bounds: tuple[int, int]) -> Pairs:
    low, high = bounds
    return union([(max(start, low), min(end, high)) for start, end in spans])


def _parts(
    communication: Pairs, compute: Pairs, memory: Pairs, bounds: tuple[int, int]
) -> tuple[int, int, int, int]:
    communication, compute, memory = (clip(s, bounds) for s in (communication, compute, memory))
    busy = union(communication + compute + memory)
    return (
        length(compute),
        length(minus(communication, compute)),
        length(minus(memory, union(communication + compute))),
        bounds[1] - bounds[0] - length(busy),
    )


def _events(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    # Fractions stay text: most of them are read by nobody.
    trace = json.loads(text, parse_float=str, strict=False)
    events = trace["traceEvents"] if isinstance(trace, dict) else trace
    found = []
    for event in events:
        if event.get("ph") == "X" and _counts(event):
            event["ts"] = round(Decimal(event["ts"]) * 1000)
            event["dur"] = round(Decimal(event.get("dur", 0)) * 1000)
            event.setdefault("args", {})
            found.append(event)
    return found


def _counts(event: dict[str, Any]) -> bool:
    """Whether it is a step, GPU work, or a call that may have launched some."""
    category = _category(event)
    return (
        category in GPU_WORK
        or "runtime" in category
        or "driver" in category
        or event["name"].startswith("ProfilerStep#")
    )


def _category(event: dict[str, Any]) -> str:
    category: str = event.get("cat", "").lower()
    return category


def _device(event: dict[str, Any]) -> Any:
    return event["args"].get("device", event["pid"])


def _dur(event: dict[str, Any]) -> int:
    return max(0, int(event["dur"]))


def _steps(events: list[dict[str, Any]]) -> list[tuple[int, int, int]]:
    steps = []
    for event in events:
        match = re.fullmatch(r"ProfilerStep#(\d+)", event["name"])
        if match and _category(event) in ("user_annotation", "cpu_op"):
            steps.append((int(match[1]), event["ts"], event["ts"] + _dur(event)))
    return sorted(steps, key=lambda step: step[1])


def _window(
    events: list[dict[str, Any]], steps: list[tuple[int, int, int]], work: list[dict[str, Any]]
) -> tuple[int, int]:
    if not steps:
        return min(e["ts"] for e in work), max(e["ts"] + _dur(e) for e in work)
    start, end = steps[0][1], max(step[2] for step in steps)
    launched = {}
    for event in sorted(events, key=lambda e: e["ts"]):
        if "runtime" in _category(event) or "driver" in _category(event):
            launched.setdefault(event["args"].get("correlation"), event["ts"])
    inside = [
        e["ts"] + _dur(e)
        for e in work
        if start <= launched.get(e["args"].get("correlation"), -1) < end
    ]
    return start, max([end, *inside])
