# SPDX-License-Identifier: Apache-2.0
"""One of several processes, on one node or many, that share the traces of a run among them."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from megatron.torch_trace.errors import UsageError

_SHARD = re.compile(r"(\d+)/(\d+)")


@dataclass(frozen=True, slots=True)
class Shard:
    """The `number`-th of `count` shares, counted from 1."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Shard:
        """`2/8`.

        Raises:
            UsageError: it is not a share, or there is no such one.
        """
        match = _SHARD.fullmatch(text.strip())
        if not match:
            raise UsageError(f"--shard {text}: is not I/N, such as 1/8 for the first of eight.")
        number, count = int(match[1]), int(match[2])
        if not 1 <= number <= count:
            raise UsageError(f"--shard {text}: there are shares 1/{count} to {count}/{count}.")
        return cls(number, count)

    @classmethod
    def of_step(cls, environment: Mapping[str, str]) -> Shard | None:
        """The share of a task of `srun -n N`; None outside a step of several tasks."""
        if "SLURM_STEP_ID" not in environment:
            return None
        # SLURM_NTASKS can be the job's; a step of one task may run in a job of many.
        tasks = environment.get("SLURM_STEP_NUM_TASKS", environment.get("SLURM_NTASKS", "1"))
        task = environment.get("SLURM_PROCID", "")
        if not tasks.isdecimal() or not task.isdecimal() or int(tasks) < 2:
            return None
        return cls(int(task) + 1, int(tasks))

    def of(self, files: Iterable[Path]) -> list[Path]:
        """This share of `files`, about as many bytes as every other; in the order given.

        All shares find the same division by themselves: the largest first, each to whom has least.
        """
        given = list(files)
        loads = [(0, share) for share in range(min(self.count, len(given)))]
        mine = set()
        for size, file in sorted(((_size(file), file) for file in given), reverse=True):
            load, share = heapq.heappop(loads)
            heapq.heappush(loads, (load + size, share))
            if share == self.number - 1:
                mine.add(file)
        return [file for file in given if file in mine]


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
