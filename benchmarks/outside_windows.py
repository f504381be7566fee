# SPDX-License-Identifier: Apache-2.0
"""What iterations outside of windows cost with the flags, beside iterations without them.

    python benchmarks/outside_windows.py              one rank, on a GPU if there is one; 3 minutes
    python benchmarks/outside_windows.py --gpu-bound  a larger model, which hides what a host varies
    python benchmarks/outside_windows.py --cpu

One training with `--torch-profile` whose window never comes. Iterations alternate, in the order
with, without, without, with: without, Megatron's own functions are called as if nothing was
wrapped. So a host or a GPU that becomes slower for seconds is slower for both. A pair is as many
iterations with as without that follow each other. Prints the median of the pairs with the range
that holds it in 95 of 100 draws, the same of the iterations without alone, which differ by nothing
but chance, and, by itself, the time of the processor that our part of an iteration takes.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from watch_cost import interval

REPOSITORY = Path(__file__).resolve().parents[1]
OUT = "OUTSIDE_WINDOWS"
BLOCK, SETTLE, PAIRS, NEVER = 24, 24, 20, 1_000_000
NAMES = ("train_step", "training_log")
"""What is wrapped and called in each iteration."""
MODELS = {
    "cpu": (2, 128, 128, 4),
    "launch-bound": (4, 2048, 1024, 4),
    "gpu-bound": (4, 4096, 2048, 8),
}
"""Layers, hidden size, sequence length, micro-batches."""


def is_with(iteration: int) -> bool:
    """Whether our part runs in it."""
    return iteration % 4 in (0, 3)


def train() -> None:
    """In the process of the training."""
    from megatron.training import training

    times: list[float] = []
    ours_ns: list[int] = []
    originals = {name: getattr(training, name).__wrapped__ for name in NAMES}
    wrapped = {name: getattr(training, name) for name in NAMES}

    def is_on() -> bool:
        # `times` has this iteration's beginning.
        return is_with(len(times) - 1 - SETTLE)

    def switched(name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if name == NAMES[0]:
                times.append(time.perf_counter())
                if len(times) > SETTLE + 2 * PAIRS * BLOCK:
                    Path(os.environ[OUT]).write_text(json.dumps([times, ours_ns]))
                    os._exit(0)
            if not is_on():
                return originals[name](*args, **kwargs)
            began = time.thread_time_ns()
            inside = 0

            def inner(*args: Any, **kwargs: Any) -> Any:
                nonlocal inside
                at = time.thread_time_ns()
                try:
                    return originals[name](*args, **kwargs)
                finally:
                    inside = time.thread_time_ns() - at

            wrapped[name].__wrapped__ = inner
            try:
                return wrapped[name](*args, **kwargs)
            finally:
                ours_ns.append(time.thread_time_ns() - began - inside)

        return call

    for name in NAMES:
        setattr(training, name, switched(name))


def judged(times: list[float], ours_ns: list[int]) -> str:
    """One paragraph."""
    lengths = [b - a for a, b in itertools.pairwise(times[SETTLE:])]
    found: dict[str, list[float]] = {"means": [], "medians": [], "by chance": []}
    for first in range(0, 2 * PAIRS * BLOCK, 2 * BLOCK):
        on, off = (
            [lengths[at] for at in range(first, first + 2 * BLOCK) if is_with(at) is with_ours]
            for with_ours in (True, False)
        )
        found["means"].append(100.0 * (sum(on) / sum(off) - 1.0))
        found["medians"].append(100.0 * (median(on) / median(off) - 1.0))
        found["by chance"].append(100.0 * (median(off[::2]) / median(off[1::2]) - 1.0))
    told = [f"{PAIRS} pairs of {BLOCK} iterations of {1e3 * median(lengths):.1f} ms"]
    for name, pairs in found.items():
        middle, low, high = interval(pairs)
        told.append(f"{name} {middle:+.2f} % ({low:+.2f} to {high:+.2f})")
    each = sum(median(ours_ns[at :: len(NAMES)]) for at in range(len(NAMES))) / 1e3
    told.append(f"our part takes {each:.0f} us of the thread that trains")
    return "; ".join(told)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cpu", action="store_true", help="no GPU, even if there is one")
    parser.add_argument("--gpu-bound", action="store_true", help="a model that keeps a GPU busy")
    options = parser.parse_args()
    import torch

    gpu = torch.cuda.is_available() and not options.cpu
    name = "cpu" if not gpu else "gpu-bound" if options.gpu_bound else "launch-bound"
    layers, hidden, sequence, micro_batches = MODELS[name]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "times.json")
        flags = (
            f"--num-layers {layers} --hidden-size {hidden} --num-attention-heads 8 --seq-length "
            f"{sequence} --max-position-embeddings {sequence} --micro-batch-size 1 "
            f"--global-batch-size {micro_batches} --lr 1e-4 --bf16 --mock-data "
            f"--tokenizer-type NullTokenizer --vocab-size 512 --train-iters {NEVER} "
            f"--log-interval 1 --eval-interval {NEVER} --eval-iters 0 --transformer-impl local "
            f"--num-workers 0 --torch-profile --torch-profile-iterations {NEVER} "
            f"--torch-profile-spans phases modules --torch-profile-dir {folder}"
        )
        environment = {
            "CUDA_DEVICE_MAX_CONNECTIONS": "1", "PYTHONWARNINGS": "ignore", **os.environ,
            OUT: str(out), "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29811",
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
        }  # fmt: skip
        if not gpu:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        command = [sys.executable, __file__, *flags.split()]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
        if not out.exists():
            sys.exit(f"The training ended with {done.returncode}: {done.stdout[-500:]}")
        print(judged(*json.loads(out.read_text())))


def _wrap_when_it_trains() -> None:
    """`pretrain_gpt.py` wraps Megatron's names; then ours come around these."""
    from megatron.training import training

    pretrain = training.pretrain

    @functools.wraps(pretrain)  # whose signature tells its generation
    def begins(*args: Any, **kwargs: Any) -> Any:
        train()
        return pretrain(*args, **kwargs)

    training.pretrain = begins
    import megatron.training

    megatron.training.pretrain = begins
    sys.argv[0] = str(REPOSITORY / "pretrain_gpt.py")
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    if OUT in os.environ:
        _wrap_when_it_trains()
    else:
        main()
