# SPDX-License-Identifier: Apache-2.0
"""Memory after every iteration, of the rank that logs: no other rank is asked, no GPU waited for.

torch counts its peak from the start of the process, or from the last reset, and Megatron reports
that count. So nothing is reset here: the peak of an iteration is known where it is the highest so
far, which is how growth and the first full iteration show.
"""

from __future__ import annotations

import time
from typing import Any

from megatron.torch_profile.metrics.nvml import GIB, Gpu

FIELDS = ("allocated_gib", "reserved_gib", "peak_gib", "gpu_used_gib", "rank")
"""Each becomes `memory/iteration/<field>`."""
_CHEAP_SECONDS = 0.001
"""A card that takes longer to tell what is used is not asked after every iteration."""


class IterationMemory:
    """Memory of this rank's GPU.

    Args:
        rank: of this process, which is told beside the numbers.
        gpu: through NVML; None where that cannot be had.
    """

    def __init__(self, rank: int, gpu: Gpu | None = None) -> None:
        self._rank = rank
        self._gpu = gpu

    @classmethod
    def of_this_process(cls, rank: int) -> IterationMemory | None:
        """None without a GPU."""
        import torch

        if not torch.cuda.is_available():
            return None
        try:
            import pynvml

            return cls(rank, Gpu.of_this_process(pynvml))
        except Exception:  # torch's own numbers stay
            return cls(rank)

    def values(self) -> dict[str, float]:
        """Numbers of the moment."""
        import torch

        stats: Any = torch.cuda.memory.memory_stats_as_nested_dict()
        in_use = stats["allocated_bytes"]["all"]
        found = {
            "allocated_gib": in_use["current"] / GIB,
            "reserved_gib": stats["reserved_bytes"]["all"]["current"] / GIB,
            "peak_gib": in_use["peak"] / GIB,
            **self._used(),
            "rank": self._rank,
        }
        return {f"memory/iteration/{name}": found[name] for name in FIELDS if name in found}

    def _used(self) -> dict[str, float]:
        if self._gpu is None:
            return {}
        began = time.monotonic()
        try:
            used = self._gpu.memory_used_gib()
        except Exception:
            self._gpu = None
            return {}
        if time.monotonic() - began > _CHEAP_SECONDS:
            self._gpu = None
        return {"gpu_used_gib": used}
