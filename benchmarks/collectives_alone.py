# SPDX-License-Identifier: Apache-2.0
"""How long do collectives take when nothing else runs? For the factor of `whatif --comm dp*FACTOR`.

torchrun --nproc-per-node 4 benchmarks/collectives_alone.py
NCCL_MAX_NCHANNELS=2 torchrun --nproc-per-node 4 benchmarks/collectives_alone.py
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any

MIB = (16, 64, 160, 640)
REPEATS = 10


def microseconds(call: Callable[[], Any]) -> float:
    """Mean of `REPEATS` calls one after the other, on the GPU."""
    import torch

    for _ in range(5):
        call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(REPEATS):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1000 / REPEATS


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    import torch
    import torch.distributed as dist

    if not torch.cuda.is_available() or "LOCAL_RANK" not in os.environ:
        sys.exit("This benchmark needs GPUs; start it with torchrun.")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    if dist.get_rank() == 0:
        print("| MiB | reduce-scatter us | all-gather us | all-reduce us |\n|---|---|---|---|")
    for mib in MIB:
        whole = torch.ones(mib * 2**20 // 4, device="cuda")
        part = torch.ones(len(whole) // dist.get_world_size(), device="cuda")
        scatter = microseconds(lambda: dist.reduce_scatter_tensor(part, whole))  # noqa: B023
        gather = microseconds(lambda: dist.all_gather_into_tensor(whole, part))  # noqa: B023
        reduce = microseconds(lambda: dist.all_reduce(whole))  # noqa: B023
        if dist.get_rank() == 0:
            print(f"| {mib} | {scatter:.0f} | {gather:.0f} | {reduce:.0f} |")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
