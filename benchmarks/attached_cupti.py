# SPDX-License-Identifier: Apache-2.0
"""What of CUPTI slows an iteration that is bound by launches: what it records, or that it is there?

    python benchmarks/attached_cupti.py                  one GPU, about a minute
    python benchmarks/attached_cupti.py --rounds 3

A loop of 24 small transformer blocks. In each round, each row records one iteration, after 12
without the profiler, of which 6 count, and one warm-up; in between, CUPTI is torn down. In a row,
kinds of records are switched off again right after torch's profiler has switched them on;
`nothing` leaves none, and `operators too` records those of torch besides.

The last column is what one launch of an empty kernel takes the CPU, less what it takes without the
profiler: the least of some batches of launches, so that other work of the machine hardly counts.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

KINDS = {
    "memcpy": 1, "memset": 2, "driver": 4, "runtime": 5, "kernel": 10, "overhead": 17,
    "synchronization": 38, "external correlation": 39,
}  # fmt: skip
"""CUpti_ActivityKind, of cupti_activity.h."""
ROWS = {
    "operators too": (),
    "all": (),
    "all but calls": ("driver", "runtime", "overhead", "synchronization"),
    "kernels and copies": (
        "driver",
        "runtime",
        "overhead",
        "synchronization",
        "external correlation",
    ),
    "launches": (
        "memcpy",
        "memset",
        "kernel",
        "overhead",
        "synchronization",
        "external correlation",
    ),
    "nothing": tuple(KINDS),
}
"""What each row switches off."""
UNDISTURBED = 6
LAUNCHES, BATCHES = 1000, 5
"""Of a batch, no more than fit the GPU's queue; and batches."""


def cupti() -> ctypes.CDLL:
    """The library that torch has loaded."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "libcupti" in line:
            return ctypes.CDLL(line.split()[-1])
    sys.exit("This torch has loaded no libcupti; it is no torch for CUDA.")


def training() -> Any:
    """An iteration, from its launch until the GPU is done, in seconds."""
    import torch

    layer = torch.nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 24, enable_nested_tensor=False).cuda().bfloat16()
    inputs = torch.randn(1, 128, 256, device="cuda", dtype=torch.bfloat16)

    def step() -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(4):
            model(inputs).sum().backward()
        for parameter in model.parameters():
            parameter.grad = None
        torch.cuda.synchronize()
        return time.perf_counter() - began

    return step


def launching() -> Any:
    """What a launch takes the CPU, in ns: the least mean of some batches."""
    import torch

    number = torch.zeros(1, device="cuda")

    def launch() -> float:
        least = float("inf")
        for _ in range(BATCHES):
            torch.cuda.synchronize()
            began = time.perf_counter_ns()
            for _ in range(LAUNCHES):
                number.zero_()
            least = min(least, (time.perf_counter_ns() - began) / LAUNCHES)
        torch.cuda.synchronize()
        return least

    return launch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="after one that does not count")
    parser.add_argument("--seconds", type=float, help="begin no round after so many")
    options = parser.parse_args()
    os.environ["TEARDOWN_CUPTI"] = "1"
    import torch

    if not torch.cuda.is_available():
        sys.exit("This benchmark needs a GPU.")
    step, launch, library = training(), launching(), cupti()
    slower: dict[str, list[float]] = {name: [] for name in ROWS}
    longer: dict[str, list[float]] = {name: [] for name in ROWS}
    cuda, cpu = torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU
    alone = []
    started = time.monotonic()
    for number in range(options.rounds + 1):
        if options.seconds and time.monotonic() - started > options.seconds:
            break
        for name, off in ROWS.items():
            undisturbed = [step() for _ in range(2 * UNDISTURBED)][UNDISTURBED:]
            before = launch()
            activities = [cuda, cpu] if name == "operators too" else [cuda]
            profiler = torch.profiler.profile(activities=activities)
            profiler.prepare_trace()
            for kind in off:
                library.cuptiActivityDisable(ctypes.c_int(KINDS[kind]))
            step()
            profiler.start_trace()
            for kind in off:
                library.cuptiActivityDisable(ctypes.c_int(KINDS[kind]))
            recorded, during = step(), launch()
            profiler.stop_trace()
            if number:
                slower[name].append(recorded / median(undisturbed))
                longer[name].append(during - before)
                alone.append(before)
                print(
                    f"{name}: {slower[name][-1]:.2f}, a launch {before:.0f} to {during:.0f} ns",
                    flush=True,
                )
    print(f"a launch without the profiler: {median(alone):.0f} ns")
    print("| CUPTI records | recorded / undisturbed | a launch takes longer by ns |\n|---|---|---|")
    for name, found in slower.items():
        print(
            f"| {name} | {median(found):.2f} ({min(found):.2f} to {max(found):.2f}) "
            f"| {median(longer[name]):.0f} ({min(longer[name]):.0f} to {max(longer[name]):.0f}) |"
        )


if __name__ == "__main__":
    main()
