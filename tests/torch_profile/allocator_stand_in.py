# SPDX-License-Identifier: Apache-2.0
"""Stands in for torch's caching allocator: a history that is on or off, and a snapshot by hand."""

from __future__ import annotations

from typing import Any

import torch

GIB = 1 << 30
Call = dict[str, Any]


class Allocator:
    """What of torch is asked, and what it answers.

    Args:
        contents: of its snapshot; nothing is allocated by default.
    """

    def __init__(self, contents: dict[str, Any] | None = None) -> None:
        self.contents = contents or {"segments": [], "device_traces": [[]]}
        self.kept = False
        self.calls: list[Call] = []
        self.observers: list[Any] = []
        self.fails: Exception | None = None

    def record(self, **call: Any) -> None:
        """`torch.cuda.memory._record_memory_history`."""
        if self.fails is not None:
            raise self.fails
        self.calls.append(call)
        self.kept = call["enabled"] is not None

    def snapshot(self) -> dict[str, Any]:
        """`torch.cuda.memory._snapshot`."""
        if self.fails is not None:
            raise self.fails
        return {
            "segments": list(self.contents["segments"]),
            "device_traces": [list(one) for one in self.contents["device_traces"]],
        }

    def install(self, monkeypatch: Any) -> None:
        """In the place of torch's own."""
        monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", self.record)
        monkeypatch.setattr(torch.cuda.memory, "_snapshot", self.snapshot)
        monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: self.kept, raising=False)
        monkeypatch.setattr(
            torch._C,
            "_cuda_attach_out_of_memory_observer",
            self.observers.append,
            raising=False,
        )


def segment(*blocks: tuple[int, str, tuple[str, ...]], address: int = 1 << 40) -> dict[str, Any]:
    """One segment of GPU 0.

    Args:
        blocks: bytes, state and frames `file:line function` of each, one behind the other.
        address: where it begins.
    """
    placed, at = [], address
    for size, state, stack in blocks:
        placed.append(
            {
                "address": at,
                "size": size,
                "requested_size": size,
                "state": state,
                "frames": [_frame(text) for text in stack],
            }
        )
        at += size
    return {
        "device": 0,
        "address": address,
        "total_size": at - address,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "blocks": placed,
    }


def _frame(text: str) -> dict[str, Any]:
    where, _, name = text.rpartition(" ")
    file, _, line = where.rpartition(":")
    return {"filename": file, "line": int(line), "name": name}
