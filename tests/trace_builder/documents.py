# SPDX-License-Identifier: Apache-2.0
"""A file as Kineto writes it: every byte of a test's trace stands in the test."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import zstandard


def header(**entries: Any) -> str:
    """All that stands before the events: an entry is a line, and a device has one of its own."""
    lines = "".join(f'  "{key}": {_entry(value)},\n' for key, value in entries.items())
    return f'\n  {{\n{lines}  "traceEvents": [\n  '


def _entry(value: object) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        rows = ",\n".join(f"    {{\n      {json.dumps(one)[1:-1]}\n    }}" for one in value)
        return f"[\n{rows}\n  ]"
    return json.dumps(value)


HEADER = header(
    schemaVersion=1,
    deviceProperties=[{"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150109880320}],
    distributedInfo={"backend": "nccl", "rank": 3, "world_size": 8},
    displayTimeUnit="ms",
    baseTimeNanoseconds=1790857026000000000,
)
TAIL = """
  ],
  "traceName": "trace.json"
}
"""


def text(*events: str, header: str = HEADER, tail: str = TAIL) -> bytes:
    """A whole file. Text that no encoding allows is written with surrogate escapes."""
    return (header + ",\n  ".join(events) + tail).encode("utf-8", "surrogateescape")


def write(path: Path, data: bytes) -> Path:
    """Write `data`, compressed if the name says so."""
    if path.suffix == ".gz":
        data = gzip.compress(data)
    elif path.suffix == ".zst":
        data = zstandard.ZstdCompressor().compress(data)
    path.write_bytes(data)
    return path


def write_rank(
    path: Path, *events: str | list[str], rank: int = 0, world_size: int = 4, **entries: Any
) -> Path:
    """A file of one rank, without its devices and without a base of time unless told."""
    info = {"backend": "nccl", "rank": rank, "world_size": world_size}
    own = header(schemaVersion=1, displayTimeUnit="ms", **entries, distributedInfo=info)
    flat = [one for some in events for one in (some if isinstance(some, list) else [some])]
    return write(path, text(*flat, header=own))


def refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def strict(data: bytes) -> dict[str, Any]:
    """What a strict parser makes of a file; unlike json.loads it also refuses NaN."""
    result: dict[str, Any] = json.loads(data, parse_constant=refuse)
    return result


def values(data: bytes) -> list[str]:
    """All events in one order, with times digit by digit: for files that must hold the same."""
    events = json.loads(data, parse_float=str)["traceEvents"]
    return sorted(json.dumps(e, sort_keys=True) for e in events)


def read(path: Path) -> dict[str, Any]:
    """A file that was written, compressed as its name says; every byte must be strict JSON."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    elif path.suffix == ".zst":
        data = zstandard.ZstdDecompressor().decompressobj().decompress(data)
    return strict(data)


def names(data: bytes) -> list[str]:
    """Names of all events but metadata, in the order of the file."""
    return [e["name"] for e in strict(data)["traceEvents"] if e["ph"] != "M"]
