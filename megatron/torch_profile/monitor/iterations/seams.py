# SPDX-License-Identifier: Apache-2.0
"""Where an iteration's parts begin and end in Megatron and in torch, for as long as it is watched.

Megatron's timers name its parts in every version, whatever their log level; here they are marked,
and none synchronises on our account. A rank waits for others where torch's `Work.wait` does, and in
collectives that torch runs on the compute stream itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import get_ident
from typing import Any

import torch

from megatron.torch_profile.guard import Guard
from megatron.torch_profile.log import Slug
from megatron.torch_profile.monitor.iterations.parts import WAITING
from megatron.torch_profile.monitor.iterations.phase_clock import PhaseClock
from megatron.torch_profile.patching import OLDEST_CORE, Patch, PatchSet

_graph_task = torch._C._current_graph_task_id
_TRANSFERS = (
    "forward-recv",
    "forward-send",
    "backward-recv",
    "backward-send",
    "forward-send-backward-recv",
    "backward-send-forward-recv",
    "forward-send-forward-recv",
    "backward-send-backward-recv",
    "forward-backward-send-forward-backward-recv",
)
_PARTS = {
    "forward-compute": "forward",
    "backward-compute": "backward",
    "batch-generator": "data",
    "all-grads-sync": "gradients",
    "layernorm-grads-all-reduce": "gradients",
    "embedding-grads-all-reduce": "gradients",
    "non-tensor-parallel-grads-all-reduce": "gradients",
    "conditional-embedder-grads-all-reduce": "gradients",
    "params-all-gather": "parameters",
    "optimizer": "optimizer",
    **dict.fromkeys(_TRANSFERS, "pipeline"),
}
"""Megatron's timers that are a part of the iteration."""
_COLLECTIVES = (
    "allreduce",
    "allreduce_coalesced",
    "broadcast",
    "reduce",
    "allgather",
    "_allgather_base",
    "allgather_into_tensor_coalesced",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
)
"""Methods of torch's process groups; from torch 2.8 on they may run on the compute stream."""


class _MarkedTimer:
    """A Megatron timer, or its dummy, that also marks a part."""

    __slots__ = ("_kind", "_seams", "_timer")

    def __init__(self, timer: Any, kind: str, seams: Seams) -> None:
        self._timer, self._kind, self._seams = timer, kind, seams

    def start(self, *args: Any, **kwargs: Any) -> Any:
        self._seams.guard(self._seams.clock.begin, self._kind)
        return self._timer.start(*args, **kwargs)

    def stop(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._timer.stop(*args, **kwargs)
        finally:
            self._seams.guard(self._seams.clock.end, self._kind)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._timer, name)


class Seams:
    """Wrapped names that tell a clock.

    Args:
        clock: of this rank.
    """

    def __init__(self, clock: PhaseClock) -> None:
        self.clock = clock
        self.guard = Guard(Slug.MONITOR_FAILED, "training goes on without the monitor")
        self._thread = clock.thread
        self._timers: dict[str, _MarkedTimer] = {}
        self._put_back: list[tuple[Any, str, Any, Any]] = []
        self._patches = PatchSet(
            (
                Patch("megatron.core.timers", "Timers.__call__", self._timer, OLDEST_CORE),
                Patch(
                    "megatron.core.rerun_state_machine",
                    "RerunDataIterator.__next__",
                    self._next_batch,
                    (0, 10),
                ),
            )
        )

    def watch(self, on: bool) -> None:
        """Wrap, or put every name back."""
        if on:
            self.apply()
        else:
            self.remove()

    def apply(self) -> None:
        """Wrap."""
        self._patches.apply()
        with suppress(ImportError):  # a torch without torch.distributed
            from torch._C._distributed_c10d import ProcessGroup, Work

            self._wrap(Work, "wait", self._wait)
            for name in _COLLECTIVES:
                self._wrap(ProcessGroup, name, self._collective)

    def remove(self) -> None:
        """Put every name back."""
        self._patches.remove()
        while self._put_back:
            owner, name, original, wrapper = self._put_back.pop()
            # Somebody may have wrapped ours since: theirs stays, and ours passes everything on.
            if vars(owner).get(name) is wrapper:
                setattr(owner, name, original)

    def _wrap(self, owner: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
        original = vars(owner).get(name)
        if original is not None:
            ours = wrapper(original)
            setattr(owner, name, ours)
            self._put_back.append((owner, name, original, ours))

    def _timer(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        timer = wrapped(*args, **kwargs)
        name = args[0] if args else kwargs["name"]
        kind = _PARTS.get(name)
        if kind is None:
            return timer
        marked = self._timers.get(name)
        if marked is None or marked._timer is not timer:
            marked = self._timers[name] = _MarkedTimer(timer, kind, self)
        return marked

    def _next_batch(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        self.guard(self.clock.begin, "data")
        try:
            return wrapped(*args, **kwargs)
        finally:
            self.guard(self.clock.end, "data")

    def _wait(self, original: Any) -> Any:
        begin, end = self.clock.begin, self.clock.end

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._trains():
                return original(work, *args, **kwargs)
            self.guard(begin, WAITING)
            try:
                return original(work, *args, **kwargs)
            finally:
                self.guard(end, WAITING)

        return wait

    def _collective(self, original: Any) -> Any:
        begin, end = self.clock.begin, self.clock.end

        def collective(group: Any, *args: Any, **kwargs: Any) -> Any:
            options = kwargs.get("opts") or (args[-1] if args else None)
            if getattr(options, "asyncOp", True) or not self._trains():
                return original(group, *args, **kwargs)
            self.guard(begin, WAITING)
            try:
                return original(group, *args, **kwargs)
            finally:
                self.guard(end, WAITING)

        return collective

    def _trains(self) -> bool:
        """Whether this thread trains, or runs backward for the one that does."""
        return get_ident() == self._thread or _graph_task() != -1


@contextmanager
def seams(clock: PhaseClock) -> Iterator[Seams]:
    """While open, a clock is told of the parts of those iterations of which it wants to know them.

    In all others nothing is wrapped.
    """
    wrapped = Seams(clock)
    clock.watch_parts = wrapped.watch
    try:
        yield wrapped
    finally:
        clock.watch_parts = None
        wrapped.remove()
