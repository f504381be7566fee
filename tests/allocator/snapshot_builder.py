# SPDX-License-Identifier: Apache-2.0
"""Allocator snapshots as torch writes them, entry by entry."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

GIB = 1 << 30
MIB = 1 << 20


def frames(*texts: str) -> list[dict[str, Any]]:
    """`file.py:7 function` each, the innermost first."""
    found = []
    for text in texts:
        call_site, _, name = text.rpartition(" ")
        file, _, line = call_site.rpartition(":")
        found.append({"name": name, "filename": file or "??", "line": int(line or 0)})
    return found


class SnapshotBuilder:
    """A process that has allocated, freed, and taken a snapshot.

    Times are in microseconds. A block that is not freed is in the snapshot's segments, each in a
    segment of its own unless `segment` puts it elsewhere.
    """

    def __init__(self, devices: int = 1) -> None:
        self.traces: list[list[dict[str, Any]]] = [[] for _ in range(devices)]
        self.segments: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        self.settings: dict[str, Any] = {"expandable_segments": False}
        self._time = 1_000_000
        self._address = 0x7F00_0000_0000

    def entry(self, action: str, device: int = 0, **fields: Any) -> None:
        self._time = fields.pop("time_us", self._time + 1)
        entry = {"action": action, "addr": 0, "size": 0, "stream": 0, "frames": []} | fields
        self.traces[device].append(entry | {"time_us": self._time, "compile_context": "N/A"})

    def alloc(self, size: int, *stack: str, device: int = 0, **fields: Any) -> int:
        """Its address."""
        self._address += 1 << 32
        fields |= {"addr": self._address, "size": size, "frames": frames(*stack)}
        self.entry("alloc", device, **fields)
        return self._address

    def free(self, address: int, *stack: str, device: int = 0, **fields: Any) -> None:
        past = [one for one in self.traces[device] if one["addr"] == address]
        fields |= {"addr": address, "frames": frames(*stack)}
        fields.setdefault("size", past[-1]["size"] if past else 0)
        self.entry("free_requested", device, **fields)
        self.entry("free_completed", device, **fields)

    def annotation(self, name: str, start: int, end: int | None = None) -> None:
        for stage, time in (("START", start), ("END", end)):
            if time is not None:
                self.annotations.append(
                    {"stage": stage, "name": name, "device": 0, "time_us": time}
                )

    def segment(self, *blocks: dict[str, Any], device: int = 0, **fields: Any) -> None:
        """Blocks made by `block`, one behind the other."""
        start = blocks[0].get("address") or self._address + (1 << 40)
        at = start
        at_addresses = []
        for one in blocks:
            at_addresses.append({**one, "address": at})
            at += one["size"]
        used = sum(one["size"] for one in at_addresses if one["state"] == "active_allocated")
        self.segments.append(
            {
                "device": device,
                "address": start,
                "total_size": at - start,
                "allocated_size": used,
                "active_size": used,
                "stream": 0,
                "segment_type": "large",
                "segment_pool_id": (0, 0),
                "is_expandable": False,
                "blocks": at_addresses,
            }
            | fields
        )

    def snapshot(self) -> dict[str, Any]:
        self._segments_of_what_is_left()
        return {
            "segments": self.segments,
            "device_traces": self.traces,
            "allocator_settings": self.settings,
            "external_annotations": self.annotations,
        }

    def write(self, path: Path, *, protocol: int = 4) -> Path:
        path.write_bytes(pickle.dumps(self.snapshot(), protocol))
        return path

    def _segments_of_what_is_left(self) -> None:
        known = {b["address"] for s in self.segments for b in s["blocks"]}
        for device, trace in enumerate(self.traces):
            left: dict[int, dict[str, Any]] = {}
            for one in trace:
                if one["action"] == "alloc":
                    left[one["addr"]] = one
                elif one["action"] == "free_requested":
                    left.pop(one["addr"], None)
            for address, one in left.items():
                if address not in known:
                    whole = block(one["size"], one["frames"], address=address)
                    self.segment(whole, device=device)


def block(
    size: int,
    stack: list[dict[str, Any]] | None = None,
    *,
    state: str = "active_allocated",
    **fields: Any,
) -> dict[str, Any]:
    """A block of a segment; `size` is rounded to 512 as the allocator does."""
    rounded = -(-size // 512) * 512
    return {"size": rounded, "requested_size": size, "state": state, "frames": stack or []} | fields
