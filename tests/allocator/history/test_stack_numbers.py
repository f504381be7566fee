# SPDX-License-Identifier: Apache-2.0
"""Numbers of stacks take two bytes in a history of few stacks; those of blocks may need more."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from megatron.torch_trace.allocator.allocations import allocations_of
from megatron.torch_trace.allocator.snapshot import Action, Blocks, History, Segments, Snapshot
from megatron.torch_trace.allocator.stack_table import StackTable


def test_a_block_older_than_the_history_keeps_a_number_beyond_two_bytes() -> None:
    one = np.ones(1, dtype=np.int64)
    history = History(
        0 * one, np.full(1, Action.ALLOC), 512 * one, 512 * one, 0 * one, one, one.astype(np.int16)
    )
    snapshot = Snapshot(
        path=Path("memory_snapshot.pickle"),
        segments=Segments(0 * one, 0 * one, 4096 * one, 0 * one, 0 * one, 0 * one),
        blocks=Blocks(0 * one, 2048 * one, 512 * one, 512 * one, 0 * one, 70_000 * one),
        history=history,
        annotations=(),
        stacks=StackTable(),
    )
    assert allocations_of(snapshot, history, 0).stack.tolist() == [1, 70_000]
