# SPDX-License-Identifier: Apache-2.0
"""Which module launched which work, once more and one event after the other: no numpy."""

from __future__ import annotations

import gzip
import json
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

Thread = tuple[Any, Any]
Range = tuple[int, int, str, str]
"""Start, end, module, pass."""
Node = tuple[int, int, int, int, bool]
"""Start, end, number, number of the thread that made it, whether a gradient is added to its own."""

_PASSES = {"": "forward", "(backward)": "backward", "(recompute)": "recompute"}


def work_by_module(path: Path) -> dict[tuple[str, str], int]:
    """Sums of GPU work by (module, pass), ns; modules of frames are classes without numbers."""
    events = _events(path)
    ranges = _spans(events) or _frames(events)
    nodes: dict[Thread, list[Node]] = defaultdict(list)
    engine: list[dict[str, Any]] = []
    makers: dict[bool, list[tuple[int, int, Thread]]] = {True: [], False: []}
    launches: dict[int, tuple[Thread, int]] = {}
    for event in events:
        if event["cat"] == "cpu_op" and "Sequence number" in event["args"]:
            sequence, maker = event["args"]["Sequence number"], event["args"]["Fwd thread id"]
            thread = _thread(event)
            if maker:
                nodes[thread].append(
                    (event["ts"], event["ts"] + event["dur"], sequence, maker, False)
                )
            else:
                # The main thread's id is that of the process.
                makers[thread[0] == thread[1]].append((sequence, event["ts"], thread))
        elif event["name"].startswith("autograd::engine::evaluate_function: "):
            engine.append(event)
        elif event["cat"] in ("cuda_runtime", "cuda_driver"):
            launches.setdefault(event["args"].get("correlation"), (_thread(event), event["ts"]))
    for of_main in makers.values():
        of_main.sort()
    _add_unnumbered(engine, nodes)
    for found in (*ranges.values(), *nodes.values()):
        found.sort(key=lambda one: (one[0], -one[1]))
    sums: dict[tuple[str, str], int] = defaultdict(int)
    for event in events:
        if event["cat"] not in ("kernel", "gpu_memcpy", "gpu_memset"):
            continue
        thread, time = launches[event["args"]["correlation"]]
        here = _innermost(ranges[thread], time)
        there = None
        node = _innermost(nodes[thread], time)
        if node and not (node[4] and "nccl" in event["name"]):
            # Torch's thread 1 is the main one.
            made = makers[node[3] == 1]
            at = bisect_left(made, (node[2] + 1,)) - 1
            there = _innermost(ranges[made[at][2]], made[at][1]) if at >= 0 else None
        if there and (here is None or there[2].startswith(f"{here[2]}.")):
            sums[there[2], "backward"] += event["dur"]
        elif here:
            sums[here[2:]] += event["dur"]
    return dict(sums)


def _add_unnumbered(engine: list[dict[str, Any]], nodes: dict[Thread, list[Node]]) -> None:
    numbered = {thread: sorted(found) for thread, found in nodes.items()}
    for event in engine:
        thread, start, end = _thread(event), event["ts"], event["ts"] + event["dur"]
        adds = event["name"].endswith("AccumulateGrad")
        at = bisect_left(numbered[thread], (start,)) - adds
        if 0 <= at < len(numbered[thread]) and (adds or numbered[thread][at][0] < end):
            nodes[thread].append((start, end, *numbered[thread][at][2:4], adds))


def _innermost(ranges: Sequence[Any], time: int) -> Any:
    """The innermost is the one that began last, of several that did the shorter one."""
    for at in range(bisect_right(ranges, time, key=lambda one: one[0]) - 1, -1, -1):
        if time < ranges[at][1]:
            return ranges[at]
    return None


def _spans(events: list[dict[str, Any]]) -> dict[Thread, list[Range]]:
    found: dict[Thread, list[Range]] = defaultdict(list)
    for event in events:
        if event["cat"] == "user_annotation" and ": " in event["name"]:
            module, _, kind = event["name"].partition(": ")
            direction = _PASSES[kind.partition(" ")[2]]
            end = event["ts"] + event["dur"]
            found[_thread(event)].append((event["ts"], end, module, direction))
    return found


def _frames(events: list[dict[str, Any]]) -> dict[Thread, list[Range]]:
    found: dict[Thread, list[Range]] = defaultdict(list)
    frames = [e for e in events if e["name"].startswith("nn.Module: ")]
    for frame in frames:
        begin, end = frame["ts"], frame["ts"] + frame["dur"]
        around = [one for one in frames if one["ts"] <= begin and end <= one["ts"] + one["dur"]]
        classes = [
            one["name"][len("nn.Module: ") :].rsplit("_", 1)[0]
            for one in sorted(around, key=lambda one: (one["ts"], -one["dur"]))
        ]
        module = ".".join(classes).removeprefix("DistributedDataParallel.Float16Module.")
        if not module.startswith("DistributedDataParallel"):
            found[_thread(frame)].append((begin, end, module, "forward"))
    return found


def _thread(event: dict[str, Any]) -> Thread:
    return event["pid"], event["tid"]


def _events(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt") as file:
        events: list[dict[str, Any]] = json.load(file, parse_float=Decimal)["traceEvents"]
    slices = [event for event in events if event.get("ph") == "X"]
    for event in slices:
        event["ts"], event["dur"] = int(event["ts"] * 1000), int(event["dur"] * 1000)
    return slices
