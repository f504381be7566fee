# SPDX-License-Identifier: Apache-2.0
"""A run whose ranks have left hang records, rank by rank."""

from __future__ import annotations

import pickle
from pathlib import Path

from record_builder import RecordBuilder

from megatron.torch_trace.format.hang_records import (
    FLIGHT_SUFFIX,
    HANG_SUFFIX,
    HangName,
    HangRecord,
    ThreadStack,
)

SECOND = 1_000_000_000
WAITS = (
    "/site/torch/distributed/distributed_c10d.py:2800 all_reduce",
    "/site/torch/distributed/c10d_logger.py:81 wrapper",
    "/megatron/core/tensor_parallel/mappings.py:20 _reduce",
)
IN_THE_LOADER = (
    "/usr/lib/python3.12/threading.py:355 wait",
    "/site/torch/utils/data/dataloader.py:88 __next__",
    "/megatron/training/training.py:900 train_step",
)


class Run:
    """A run of four ranks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "hangs").mkdir()

    def rank(
        self,
        rank: int,
        stack: tuple[str, ...],
        *,
        code: str = "",
        began_s: float = 1000,
        waited_s: float = 30,
        iteration: int = 87,
        modules: tuple[str, ...] = (),
        micro_batch: int | None = None,
    ) -> Path:
        began_ns = int(began_s * SECOND)
        record = HangRecord(
            rank=rank,
            world_size=4,
            host=f"node{rank // 2}",
            pid=100 + rank,
            iteration=iteration,
            seconds=30.0,
            written_ns=began_ns + int(waited_s * SECOND),
            began_ns=began_ns,
            modules=modules,
            micro_batch=micro_batch,
            threads=(ThreadStack("MainThread", True, stack, code),),
        )
        name = HangName(rank, iteration).stem
        path = self.folder / "hangs" / f"{name}{HANG_SUFFIX}"
        path.write_text(record.as_text())
        return path


def write_flights(built: RecordBuilder, paths: dict[int, Path]) -> None:
    """Flight records of these ranks beside their hang records."""
    for rank, path in paths.items():
        flight = path.with_name(path.name.removesuffix(HANG_SUFFIX) + FLIGHT_SUFFIX)
        flight.write_bytes(pickle.dumps(built.record(rank), 2))
