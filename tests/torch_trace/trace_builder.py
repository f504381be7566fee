# SPDX-License-Identifier: Apache-2.0
"""Kineto-style text by hand: every byte of a test's trace stands in the test."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

HEADER = """
  {
    "schemaVersion": 1,
    "deviceProperties": [
    {
      "id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150109880320
    }
    ],
      "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1790857026000000000,
  "traceEvents": [
  """
TAIL = """
  ],
  "traceName": "trace.json"
}
"""


def event(
    name: str = "aten::mm",
    ts: str = "100.000",
    dur: str | None = "10.000",
    *,
    ph: str = "X",
    cat: str = "cpu_op",
    pid: int | str = 42,
    tid: int | str = 7,
    args: str | None = None,
    more: str = "",
) -> str:
    """One event as Kineto prints it: names and arguments go in raw, broken or not."""
    lines = f'{{\n    "ph": "{ph}", "cat": "{cat}", "name": "{name}", "pid": {_quoted(pid)}, '
    lines += f'"tid": {_quoted(tid)},\n    "ts": {ts}'
    lines += f', "dur": {dur}' if dur is not None else ""
    lines += more
    if args is not None:
        lines += f',\n    "args": {{\n      {args}\n    }}'
    return lines + "\n  }"


def _quoted(identity: int | str) -> str:
    return str(identity) if isinstance(identity, int) else f'"{identity}"'


def kernel(name: str, ts: str, dur: str, correlation: int, *, stream: int = 7, pid: int = 0) -> str:
    """A kernel on a stream of a GPU."""
    args = f'"External id": {correlation}, "device": {pid}, "stream": {stream}, '
    args += f'"correlation": {correlation}'
    return event(name, ts, dur, cat="kernel", pid=pid, tid=stream, args=args)


def launch(ts: str, dur: str, correlation: int, *, name: str = "cudaLaunchKernel") -> str:
    """The runtime call that puts a kernel on its stream."""
    args = f'"cbid": 211, "correlation": {correlation}'
    return event(name, ts, dur, cat="cuda_runtime", args=args)


def arrow(
    phase: str, number: int, ts: str, *, pid: int = 42, tid: int = 7, cat: str = "ac2g"
) -> str:
    """One end of an arrow: `s` where it starts, `f` where it ends."""
    finish = ', "bp": "e"' if phase == "f" else ""
    return (
        f'{{\n    "ph": "{phase}", "id": {number}, "pid": {pid}, "tid": {tid}, "ts": {ts},\n'
        f'    "cat": "{cat}", "name": "{cat}"{finish}\n  }}'
    )


def step(number: int, ts: str, dur: str) -> str:
    """The annotation of a profiler step."""
    return event(f"ProfilerStep#{number}", ts, dur, cat="user_annotation", args='"External id": 1')


def named(kind: str, pid: int | str, tid: int | str, args: str) -> str:
    """A metadata event."""
    return (
        f'{{\n    "name": "{kind}", "ph": "M", "ts": 0.000, "pid": {_quoted(pid)}, '
        f'"tid": {_quoted(tid)},\n    "args": {{\n      {args}\n    }}\n  }}'
    )


def text(*events: str, header: str = HEADER, tail: str = TAIL) -> bytes:
    """A whole file. Text that no encoding allows is written with surrogate escapes."""
    return (header + ",\n  ".join(events) + tail).encode("utf-8", "surrogateescape")


def write(path: Path, data: bytes) -> Path:
    """Write `data`, compressed if the name says so."""
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def strict(data: bytes) -> dict[str, Any]:
    """What a strict parser makes of a file; unlike json.loads it also refuses NaN."""
    result: dict[str, Any] = json.loads(data, parse_constant=refuse)
    return result


def names(data: bytes) -> list[str]:
    """Names of all events but metadata, in the order of the file."""
    return [e["name"] for e in strict(data)["traceEvents"] if e["ph"] != "M"]
