# SPDX-License-Identifier: Apache-2.0
"""A rank of a real training that is late: when, where and by how much (recorded_faults.py)."""

from __future__ import annotations

import functools
import importlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KINDS = ("forward", "backward", "data", "before", "optimizer", "gpu")
SIZES_MS = (20, 40, 80)
LAYERS, MICRO_BATCHES = 2, 2
FIRST, PAIRS, BLOCK, BEFORE, RECORDED, SETTLE = 10, 3, 4, 6, 3, 2
"""Iterations: before the first cycle; in a cycle pairs of blocks, of healthy and of faulty ones, in
turn; faulty ones, a warm-up and the recorded ones; healthy ones."""
CYCLE = 2 * PAIRS * BLOCK + BEFORE + 1 + RECORDED + SETTLE


@dataclass(frozen=True)
class Fault:
    """One rank is late by `ms` once an iteration, in a micro-batch and layer where it is in one.

    `number` is of the list of all faults, `cycle` of the launch, both from 0.
    """

    number: int
    cycle: int
    kind: str
    rank: int
    ms: int
    micro_batch: int
    layer: int

    @property
    def first(self) -> int:
        """The first iteration of its cycle."""
        return FIRST + CYCLE * self.cycle + 1

    @property
    def blocks(self) -> list[range]:
        """Iterations without the profiler: healthy, faulty, healthy, ... in turn."""
        return [
            range(self.first + number * BLOCK, self.first + (number + 1) * BLOCK)
            for number in range(2 * PAIRS)
        ]

    @property
    def on(self) -> set[int]:
        """Iterations in which it is in force."""
        return {*(one for block in self.blocks[1::2] for one in block), *self._last, *self.window}

    @property
    def window(self) -> range:
        """Recorded iterations."""
        end = self.first + CYCLE - SETTLE
        return range(end - RECORDED, end)

    @property
    def _last(self) -> range:
        """Before the recorded ones, the warm-up included."""
        return range(self.window[0] - 1 - BEFORE, self.window[0])


def schedule(layout: str, first: int, count: int) -> list[Fault]:
    """The faults of a launch, in order; every kind with every size, ranks in turn.

    Args:
        layout: of the ranks.
        first, count: which part of the endless list of them.
    """
    found = []
    for number in range(first, first + count):
        kind, turn = KINDS[number % len(KINDS)], number // len(KINDS)
        # Of a tensor-parallel group the first rank alone loads data.
        rank = 0 if (layout, kind) == ("tp2", "data") else (number + turn) % 2
        size = SIZES_MS[(number + turn) % len(SIZES_MS)]
        inside = number * 3 % MICRO_BATCHES, turn % LAYERS
        found.append(Fault(number, number - first, kind, rank, size, *inside))
    return found


class LateRank:
    """In a process of training: is late, and writes down when iterations begin."""

    def __init__(self, faults: list[Fault], out: Path) -> None:
        self.rank = int(os.environ["RANK"])
        mine = [fault for fault in faults if fault.rank == self.rank]
        self.faults = {iteration: fault for fault in mine for iteration in fault.on}
        self.iteration = 0
        self.calls: dict[str, int] = {}
        self.begins = (out / f"rank-{self.rank}.begins").open("w", buffering=1)
        self.cycles_per_ms = 0.0

    def begin(self) -> None:
        """An iteration begins."""
        self.begins.write(f"{time.perf_counter_ns()}\n")
        self.iteration += 1
        self.calls.clear()
        if self.iteration == FIRST // 2:
            self.cycles_per_ms = _cycles_per_ms()

    def due(self, kind: str, at: Callable[[Fault], int] = lambda _: 0) -> Fault | None:
        """The fault, if this call of its kind in the iteration is the one that is late."""
        call = self.calls.get(kind, 0)
        self.calls[kind] = call + 1
        fault = self.faults.get(self.iteration)
        return fault if fault and fault.kind == kind and at(fault) == call else None

    def late(self, fault: Fault | None) -> None:
        """The CPU sleeps."""
        if fault:
            time.sleep(fault.ms / 1000)

    def layer(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A layer's forward; its backward is late in a hook on what the layer returns."""
        spins, sleeps, backward = (
            self.due(kind, lambda fault: fault.micro_batch * LAYERS + fault.layer)
            for kind in ("gpu", "forward", "backward")
        )
        self.late(sleeps)
        if spins:
            self._spin(spins)
        found = forward(*args, **kwargs)
        if backward:
            hidden = found[0] if isinstance(found, tuple) else found
            hidden.register_hook(lambda _: self.late(backward))
        return found

    def _spin(self, fault: Fault) -> None:
        import torch

        if self.cycles_per_ms:
            torch.cuda._sleep(round(fault.ms * self.cycles_per_ms))
        else:
            self.late(fault)

    def install(self) -> None:
        """Before Megatron trains."""
        core = "megatron.core"
        around = self._around
        around("megatron.training.training", "", "train_step", lambda: self.begin())
        samples = f"{core}.datasets.gpt_dataset", "MockGPTDataset", "__getitem__"
        around(*samples, lambda: self.late(self.due("data", lambda fault: fault.micro_batch)))
        between = f"{core}.rerun_state_machine", "RerunStateMachine", "should_checkpoint_and_exit"
        around(*between, lambda: self.late(self.due("before")))
        update = f"{core}.optimizer.optimizer", "ChainedOptimizer", "step_with_ready_grads"
        around(*update, lambda: self.late(self.due("optimizer")))
        module = importlib.import_module(f"{core}.transformer.transformer_layer")
        forward, late = module.TransformerLayer.forward, self

        @functools.wraps(forward)
        def layer(*args: Any, **kwargs: Any) -> Any:
            return late.layer(forward, *args, **kwargs)

        module.TransformerLayer.forward = layer

    def _around(self, module: str, cls: str, name: str, first: Callable[[], None]) -> None:
        owner: Any = importlib.import_module(module)
        owner = getattr(owner, cls) if cls else owner
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            first()
            return original(*args, **kwargs)

        setattr(owner, name, wrapped)


def _cycles_per_ms() -> float:
    import torch

    if not torch.cuda.is_available():
        return 0.0
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    torch.cuda._sleep(20_000_000)
    end.record()
    torch.cuda.synchronize()
    return 20_000_000 / begin.elapsed_time(end)
