# SPDX-License-Identifier: Apache-2.0
"""What goes wrong with memory, done to real trainings on GPUs: is it told as it is?

    python benchmarks/memory_faults.py RUNS              all parts, 2 GPUs, side by side
    python benchmarks/memory_faults.py RUNS --only leak  one part; those of one rank need one GPU
    python benchmarks/memory_faults.py RUNS --cpu        the launches alone: nothing to judge

One line for each part, `pass` or `FAIL` with figures, as soon as it has ended; RUNS/
memory_faults.json has them all. What is compared is what torch's allocator counts itself
(`max_memory_allocated`, the text of its error), and the losses of a training without any flag.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memory_judgements import (
    FIRST,
    LAST,
    MICROBATCHES,
    Verdict,
    expandable,
    history,
    leak,
    losses_of,
    no_caching,
    out_of_memory,
    peaks,
    ramp,
)
from memory_trainings import REPOSITORY, TINY, USUAL, Training, visible_gpus

sys.path.insert(0, str(REPOSITORY))

LIMIT = 6 << 30
WINDOW = f"--torch-profile --torch-profile-ranks all --torch-profile-iterations {FIRST}-{LAST}"
TIMELINE = f"{WINDOW} --torch-profile-memory-timeline"
SHARDED = "--no-gradient-accumulation-fusion --untie-embeddings-and-output-weights"
SEVERAL_QUEUES = {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}


Judge = Callable[[Training, Verdict], None]


@dataclass(frozen=True)
class Part:
    """One training and what is held of it.

    Args:
        flags: of it.
        judge: what should be so.
        gpus: one process each.
        alone: it makes sense with one rank, too, where there is only one GPU.
        environment: variables of it.
        fault: see `Training`.
        limit: bytes that torch may have.
        ends: how it should end.
        losses: they are those of the part `plain`, as far as it goes.
        iterations: of the training.
    """

    flags: str
    judge: Judge = peaks
    gpus: int = 1
    alone: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    fault: str = ""
    limit: int | None = None
    ends: str = "trained"
    losses: bool = False
    iterations: int = LAST + 2


PARTS = {
    "plain": Part("", judge=lambda training, verdict: None),
    "leak": Part(TIMELINE, leak, fault="leak", losses=True),
    "expandable": Part(
        TIMELINE, expandable, losses=True,
        environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    ),
    "no-caching": Part(
        f"--torch-profile --torch-profile-iterations {FIRST}-{FIRST} "
        "--torch-profile-memory-snapshot --torch-profile-on-oom", no_caching,
        environment={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, losses=True, iterations=FIRST + 1,
    ),
    "history": Part(
        f"{WINDOW} --torch-profile-memory-snapshot", history, fault="history", losses=True
    ),
    "out-of-memory": Part(
        f"{WINDOW} --torch-profile-on-oom --micro-batch-size 8", out_of_memory, limit=LIMIT,
        ends="out of memory",
    ),
    "pp2": Part(f"{TIMELINE} --pipeline-model-parallel-size 2", ramp, 2),
    "tp2": Part(f"{TIMELINE} --tensor-model-parallel-size 2", gpus=2),
    "dp2": Part(
        f"{TIMELINE} --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
        gpus=2,
    ),
    "fsdp2": Part(
        f"{TIMELINE} {SHARDED} --use-torch-fsdp2 --ckpt-format torch_dist", gpus=2, alone=True,
        environment=SEVERAL_QUEUES,
    ),
    "megatron-fsdp": Part(
        f"{TIMELINE} {SHARDED} --use-megatron-fsdp --use-distributed-optimizer "
        "--data-parallel-sharding-strategy optim_grads_params --ckpt-format fsdp_dtensor",
        gpus=2, alone=True, environment=SEVERAL_QUEUES,
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, help="one folder a part goes here")
    parser.add_argument("--seconds", type=float, default=100, help="for everything")
    parser.add_argument("--port", type=int, default=29_800, help="the first of one for each part")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), metavar="NAME")
    parser.add_argument("--cpu", action="store_true", help="no GPU, even if there is one")
    options = parser.parse_args()
    began = time.monotonic()
    have = 0 if options.cpu else visible_gpus()
    names = options.only or [
        name for name, part in PARTS.items() if options.cpu or part.alone or part.gpus <= have
    ]
    trainings = {
        name: _started(options.runs / name, PARTS[name], number, have, options)
        for number, name in enumerate(names)
    }
    result: dict[str, Any] = {}
    lock, plain_ended = threading.Lock(), threading.Event()

    def follow(name: str) -> None:
        part, training = PARTS[name], trainings[name]
        ended = training.end(began + options.seconds)
        if name == "plain":
            plain_ended.set()
        verdict = Verdict()
        verdict.hold(ended, right=ended == part.ends)
        try:
            if have:
                part.judge(training, verdict)
            if part.losses and "plain" in trainings:
                plain_ended.wait(max(0.0, began + options.seconds - time.monotonic()))
                found, plain = losses_of(training), losses_of(trainings["plain"])
                same = bool(found) and found == plain[: len(found)]
                verdict.hold("losses the same to the bit" if same else "other losses", right=same)
        except Exception as error:
            verdict.hold(f"{type(error).__name__}: {error}", right=False)
        if ended != part.ends:
            verdict.hold(training.excerpt(), right=False)
        with lock:
            result[name] = {"ended": ended, "faults": verdict.faults, "figures": verdict.figures}
            passed = "FAIL" if verdict.faults else "pass"
            told = "; ".join(filter(None, [*verdict.faults, *verdict.figures]))
            print(f"{time.monotonic() - began:.0f} s: {passed} {name}: {told}", flush=True)
            (options.runs / "memory_faults.json").write_text(json.dumps(result, indent=1) + "\n")

    threads = [threading.Thread(target=follow, args=(name,)) for name in names]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    passed = sum(not one["faults"] for one in result.values())
    print(f"{passed} of {len(names)} pass")


def _started(
    folder: Path, part: Part, number: int, have: int, options: argparse.Namespace
) -> Training:
    one = number % have if have else None
    count = min(part.gpus, have or part.gpus)
    gpus = [one] if count == 1 else list(range(count)) if have else [None] * count
    batch = MICROBATCHES * (1 if "-model-parallel-size" in part.flags else count)
    written = f"--torch-profile-dir {folder}" if "--torch-profile" in part.flags else ""
    training = Training(
        folder,
        f"--train-iters {part.iterations} --lr-decay-iters {LAST + 2} "
        f"--global-batch-size {batch} {part.flags} {written}",
        gpus, options.port + number, TINY if options.cpu else USUAL,
        environment=part.environment, fault=part.fault,
    )  # fmt: skip
    training.begin(limit=part.limit)
    return training


if __name__ == "__main__":
    main()
