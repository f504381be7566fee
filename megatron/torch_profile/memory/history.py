# SPDX-License-Identifier: Apache-2.0
"""The allocator's history of one window: switched on, taken, switched off again.

torch keeps one history for the whole process. Whoever else has switched it on (user's code,
Megatron's --record-memory-history) keeps it as it is: the snapshot of the window is taken from it.
"""

from __future__ import annotations

import gc
import os
from typing import Any

import torch

from megatron.torch_profile.config import TorchProfileConfig
from megatron.torch_profile.patching import OLDEST_CORE, Patch, PatchSet

Contents = dict[str, Any]
"""Of a snapshot, as torch makes it."""

_NO_CACHING = "PYTORCH_NO_CUDA_MEMORY_CACHING"
MEGATRONS = "Megatron's --record-memory-history keeps the allocator's history"
USERS = (
    "this process keeps the allocator's history already (torch.cuda.memory._record_memory_history)"
)


def unavailable() -> str | None:
    """Why this process has no allocator that could be asked, in one clause; None if it has."""
    if not torch.cuda.is_available():
        return "it trains without a GPU"
    if os.environ.get(_NO_CACHING, "0") not in ("", "0"):
        return f"{_NO_CACHING} is set, so torch has no allocator that keeps a record"
    backend = getattr(torch.cuda, "get_allocator_backend", lambda: "native")()
    if backend != "native":
        return f"torch's allocator is {backend}, which keeps no record"
    return None


def take() -> Contents:
    """A snapshot of the allocator, with the history if one is kept.

    No collection of garbage meanwhile: what is made here are millions of objects that all live.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        contents: Contents = torch.cuda.memory._snapshot()
    finally:
        if collects:
            gc.enable()
    return contents


def is_kept() -> bool:
    """Whether the allocator keeps a history now."""
    ask = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    return bool(ask()) if ask is not None else False


class AllocatorHistory:
    """The history of one window.

    Args:
        config: how long it is, and with which stacks.
        megatrons: whether Megatron's own flag for it is given.
    """

    def __init__(self, config: TorchProfileConfig, *, megatrons: bool = False) -> None:
        self.shared: str | None = None
        """Who keeps the history beside us, in one clause; None while it is ours alone."""
        if is_kept():
            self.shared = MEGATRONS if megatrons else USERS
            return
        self._patches = PatchSet(
            (Patch("torch.cuda.memory", "_record_memory_history", self._asked, OLDEST_CORE),)
        )
        _record(config)
        self._patches.apply()

    def end(self) -> Contents:
        """The snapshot; the history is off again, unless somebody else wants it."""
        try:
            return take()
        finally:
            self.close()

    def close(self) -> None:
        """Off again, unless somebody else wants it; a second call changes nothing."""
        if self.shared is None:
            self._patches.remove()
            self.shared = "it has ended"
            torch.cuda.memory._record_memory_history(enabled=None)

    def _asked(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        """Somebody switches it on or off inside the window: from now on it is theirs."""
        if self.shared is None:
            self._patches.active = False
            self.shared = "user's code has switched it on or off inside the window"
        return wrapped(*args, **kwargs)


def _record(config: TorchProfileConfig) -> None:
    stacks = config.memory_snapshot_stacks
    torch.cuda.memory._record_memory_history(
        enabled="all",
        context=None if stacks == "none" else "all",
        stacks="python" if stacks == "none" else stacks,
        max_entries=config.memory_snapshot_entries,
    )
