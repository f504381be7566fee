# SPDX-License-Identifier: Apache-2.0
"""What torch tells when a GPU has no memory for a request, right before it raises the error.

The observer runs in the middle of an allocation, in whichever thread asked. It allocates nothing on
the GPU, issues no CUDA call and raises nothing: the error is training's, which may catch it and go
on. torch keeps an observer for the life of the process, so there is one, which asks who watches.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from megatron.torch_profile.log import Slug, warn
from megatron.torch_profile.memory.failed_request import FailedRequest
from megatron.torch_profile.memory.history import take
from megatron.torch_profile.memory.live_bytes import live_bytes
from megatron.torch_profile.memory.snapshot_writer import Target, reason, write
from megatron.torch_profile.memory.standing import standing
from megatron.torch_profile.plan.capture_plan import CapturePlan
from megatron.torch_trace.allocator.purpose.owners import Owners
from megatron.torch_trace.files.atomic import atomic_path
from megatron.torch_trace.format.file_names import OUT_OF_MEMORY, WindowName
from megatron.torch_trace.wording import counted

MOST = 3
"""Errors of a run of which a rank writes a snapshot: who looks for a size that fits fails often."""

_watch: OutOfMemoryWatch | None = None
_attached = False


class OutOfMemoryWatch:
    """Tells of out-of-memory errors of this rank, from now until it is closed.

    Args:
        plan: where files go.
        args: Megatron's arguments.
        model: Megatron's list of model chunks.
        owners: whose memory is whose, now.
    """

    def __init__(
        self, plan: CapturePlan, args: Any, model: Any, owners: Callable[[], Owners]
    ) -> None:
        global _watch
        self._plan = plan
        self._args = args
        self._model = model
        self._owners = owners
        self._rank = plan.topology.rank
        self._lock = threading.Lock()
        self._count = 0
        _attach()
        _watch = self

    def close(self) -> None:
        """Training has ended."""
        global _watch
        if _watch is self:
            _watch = None
        self._model = None

    def tell(self, device: int, requested: int, total: int, free: int) -> None:
        """A request has failed; raises nothing.

        Args:
            device: index of the GPU.
            requested: bytes.
            total: bytes that the process may have of it.
            free: bytes that CUDA has free.
        """
        if not self._lock.acquire(blocking=False):  # another thread's, at the same time
            return
        try:
            self._count += 1
            if self._count <= MOST:
                self._tell(device, requested, total, free)
            if self._count == MOST:
                self._warn(
                    "tells of no further out-of-memory errors: %s is the most of a run",
                    counted(MOST, "error"),
                )
        except Exception as error:
            self._failed(error)
        finally:
            self._lock.release()

    def _tell(self, device: int, requested: int, total: int, free: int) -> None:
        stood = standing(self._model, without=4)
        contents = take()
        try:
            owners = self._owners()
        except Exception as error:
            owners = Owners()
            self._failed(error)
        iteration = self._iteration()
        target = self._target(iteration)
        live = live_bytes(contents, owners, device)
        failed = FailedRequest(
            rank=self._rank,
            device=device,
            iteration=iteration,
            requested=requested,
            total=total,
            # The process may be allowed a part of the GPU, of which CUDA knows nothing.
            free=max(0, min(free, total - live.reserved)),
            standing=stood,
            live=live,
        )
        # First the line: the process may not live to write the files.
        self._warn("%s", failed.paragraph(self._args))
        write(contents, owners, target)
        with atomic_path(_facts(target), replace=False) as unfinished:
            unfinished.write_text(json.dumps(failed.as_json(), indent=1) + "\n")
        self._warn("wrote %s: torch-trace memory %s", target.snapshot, target.snapshot)

    def _iteration(self) -> int | None:
        current = getattr(self._args, "curr_iteration", None)
        return current + 1 if isinstance(current, int) else None

    def _target(self, iteration: int | None) -> Target:
        stem = self._plan.trace_name().stem
        if iteration is not None:
            stem += f".{WindowName(iteration, iteration)}"
        folder = self._plan.run_folder / OUT_OF_MEMORY
        taken = 1
        target = Target.of(folder, stem)
        while target.snapshot.exists():
            taken += 1
            target = Target.of(folder, f"{stem}.{taken}")
        return target

    def _failed(self, error: Exception) -> None:
        warn(
            Slug.MEMORY_FAILED,
            "rank %d could not tell all of an out-of-memory error: %s",
            self._rank,
            reason(error),
        )

    def _warn(self, message: str, *values: object) -> None:
        warn(Slug.OUT_OF_MEMORY, f"rank %d {message}", self._rank, *values)


def _facts(target: Target) -> Path:
    name = target.snapshot.name.replace(".memory_snapshot.pickle", ".live_bytes.json")
    return target.snapshot.with_name(name)


def _attach() -> None:
    global _attached
    if not _attached:
        torch._C._cuda_attach_out_of_memory_observer(_observe)
        _attached = True


def _observe(device: int, requested: int, total: int, free: int) -> None:
    if _watch is not None:
        _watch.tell(device, requested, total, free)
