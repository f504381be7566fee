# SPDX-License-Identifier: Apache-2.0
"""A process of the long run: `pretrain_gpt.py`, with faults by plan (long_run.py starts it).

Every iteration is a line of its own file: number, loss and gradient norm to the bit. Every fifth
is one of another file: number, and bytes of the heap.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from long_run_plan import DATA, FORWARD, GLOBAL_BATCH, LEAK, SLEEPING_LAYER, Fault, Plan

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDER, PLAN = "LONG_RUN_FOLDER", "LONG_RUN_PLAN"
_HEAP_EVERY = 5
"""Iterations from one look at the heap to the next one."""


class _Mallinfo(ctypes.Structure):
    """Of mallinfo(3)."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks")),
        ("keepcost", ctypes.c_size_t),
    ]


def _heap() -> tuple[int, int]:
    """Bytes that are allocated in this process, and bytes that glibc keeps and nobody uses.

    Pages of the second that were given back to the system are among them.
    """
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo
    found = mallinfo2()
    return found.uordblks + found.hblkhd, found.fordblks


class Training:
    """What is done to the training of this rank.

    Args:
        rank: global.
        folder: of this launch.
        plan: with no faults, where none are to be injected.
    """

    def __init__(self, rank: int, folder: Path, plan: Plan | None) -> None:
        faults = plan.faults if plan is not None else ()
        self._faults = {one.kind: one for one in faults if one.rank == rank}
        self._file = (folder / f"rank-{rank}.iterations").open("a", buffering=1)
        self._heap = (folder / f"rank-{rank}.heap").open("a", buffering=1)
        self._iteration = 0
        self._leaked: list[bytes] = []

    def install(self) -> None:
        """Wrap what the faults are in."""
        from megatron.core.datasets.gpt_dataset import GPTDataset
        from megatron.core.transformer.transformer_layer import TransformerLayer
        from megatron.training import training

        training.train_step = self._told(training.train_step)
        if DATA in self._faults:
            GPTDataset.__getitem__ = _slow_sample(GPTDataset.__getitem__, self._faults[DATA])
        if FORWARD in self._faults:
            init, training_of_rank = TransformerLayer.__init__, self

            def built(layer: Any, *args: Any, **kwargs: Any) -> None:
                init(layer, *args, **kwargs)
                if layer.layer_number == SLEEPING_LAYER + 1:
                    layer.mlp.forward = training_of_rank._slow_forward(layer.mlp.forward)

            TransformerLayer.__init__ = built

    def _told(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def told(*args: Any, **kwargs: Any) -> Any:
            self._iteration = _iterations_done() + 1
            leak = self._faults.get(LEAK)
            if leak is not None and leak.covers(self._iteration):
                self._leaked.append(b"x" * int(leak.amount * 1e6))
            result = step(*args, **kwargs)
            losses, norm = result[0], result[5]
            digits = ",".join(float(one).hex() for one in losses.values())
            self._file.write(f"{self._iteration} {digits} {float(norm).hex()}\n")
            if self._iteration % _HEAP_EVERY == 0:
                used, free = _heap()
                self._heap.write(f"{self._iteration} {used} {free}\n")
            return result

        return told

    def _slow_forward(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        fault = self._faults[FORWARD]

        def slow(*args: Any, **kwargs: Any) -> Any:
            if fault.covers(self._iteration):
                time.sleep(fault.amount)
            return forward(*args, **kwargs)

        return slow


def _slow_sample(getitem: Callable[..., Any], fault: Fault) -> Callable[..., Any]:
    """Samples follow each other, so a process of the loader knows for which iteration one is."""
    from megatron.core.datasets.utils import Split

    def slow(dataset: Any, index: int | None) -> Any:
        training = dataset.index_split == Split.train
        if training and index is not None and fault.covers(index // GLOBAL_BATCH + 1):
            time.sleep(fault.amount)
        return getitem(dataset, index)

    return slow


def _iterations_done() -> int:
    from megatron.training import get_args

    args = get_args()
    return int(args.consumed_train_samples) // GLOBAL_BATCH


def train() -> None:
    """In a process of training."""
    rank, folder = int(os.environ["RANK"]), Path(os.environ[FOLDER])
    (folder / f"rank-{rank}.pid").write_text(str(os.getpid()))
    plan = Plan.read(Path(os.environ[PLAN])) if PLAN in os.environ else None
    Training(rank, folder, plan).install()
    sys.argv = [str(REPOSITORY / "pretrain_gpt.py"), *sys.argv[1:]]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    train()
