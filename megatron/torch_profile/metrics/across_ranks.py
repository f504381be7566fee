# SPDX-License-Identifier: Apache-2.0
"""One row of numbers per rank, brought to all ranks in one all-gather, and what to say of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from megatron.torch_profile.plan import topology


def rank_and_gpus() -> tuple[int, int]:
    """This process's rank and the number of ranks."""
    if not topology.distributed():
        return 0, 1
    import torch

    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def gather(row: Sequence[float]) -> list[list[float]]:
    """Every rank's row. Collective: one all-gather over the default group.

    Args:
        row: shape [fields], the same number of fields on every rank; NaN where unknown.

    Returns:
        Shape [world size, fields].
    """
    if not topology.distributed():
        return [list(row)]
    import torch

    # Only gloo reads the host's memory; what replaces NCCL elsewhere is no different.
    device = "cpu" if "gloo" in torch.distributed.get_backend() else "cuda"
    mine = torch.tensor(row, dtype=torch.float64, device=device)
    rows = [torch.empty_like(mine) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(rows, mine)
    return [[float(value) for value in rank] for rank in torch.stack(rows).tolist()]


def largest(column: Sequence[float]) -> float:
    """The largest value that is known; NaN if none is."""
    return max((value for value in column if not math.isnan(value)), default=math.nan)


def spread(name: str, column: Sequence[float]) -> dict[str, float]:
    """A quantity that every rank has: mean, extremes, and the (lowest) ranks that have them.

    Args:
        name: key of the mean; the others follow as `<name>/min`, `/max`, `/min_rank`, `/max_rank`.
        column: shape [world size]; NaN where unknown.

    Returns:
        The five keys; none if no rank knows.
    """
    known = {rank: value for rank, value in enumerate(column) if not math.isnan(value)}
    if not known:
        return {}
    low, high = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
    return {
        name: math.fsum(known.values()) / len(known),
        f"{name}/min": known[low],
        f"{name}/max": known[high],
        f"{name}/min_rank": low,
        f"{name}/max_rank": high,
    }
