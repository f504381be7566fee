# SPDX-License-Identifier: Apache-2.0
"""What the span of one module costs training, beside recording without spans of modules.

    python benchmarks/module_spans.py                    the CPU; no GPU is needed
    python benchmarks/module_spans.py --layers 24 --steps 100

Many small modules inside each other, forward and backward, in one thread: what is left of a step
is Python, hooks and the profiler. A row's cost is its least step, less the least step of the row
without spans, divided by the number of modules. The rows take turns, so that a slow moment of the
machine falls on all of them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from megatron.torch_profile.spans.modules import module_spans


class Layer(torch.nn.Module):
    """As many modules as a transformer layer has, with next to nothing in each."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.attention = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)


def step(model: torch.nn.Module, spans: Callable[[], AbstractContextManager[Any]]) -> int:
    """Processor time of a forward and a backward of this thread, in ns."""
    given = torch.ones(2, 8, requires_grad=True)
    with spans():
        began = time.thread_time_ns()
        model(given).sum().backward()
        return time.thread_time_ns() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seconds", type=float, help="no further step after so many")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(Layer() for _ in range(options.layers)))
    modules = sum(1 for _ in model.modules())
    rows: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "none": nullcontext,
        "hooks in both passes": partial(module_spans, model),
        "drawn backward": partial(module_spans, model, backward=False),
    }
    least = dict.fromkeys(rows, 1 << 62)
    began = time.monotonic()
    for number in range(options.steps):
        if options.seconds and time.monotonic() - began > options.seconds:
            break
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            # Whoever goes first in a recording pays for its first block of memory.
            turn = [*rows][number % len(rows) :] + [*rows][: number % len(rows)]
            for row in turn:
                least[row] = min(least[row], step(model, rows[row]))
    print(f"torch {torch.__version__}, {modules} modules, least of {number + 1} steps")
    print("| spans of modules | us a step | us a module |\n|---|---|---|")
    for row, ns in least.items():
        each = (ns - least["none"]) / modules / 1000
        print(f"| {row} | {ns / 1000:.0f} | {each:.1f} |")


if __name__ == "__main__":
    main()
