# SPDX-License-Identifier: Apache-2.0
"""What `torch-trace memory --fit` predicts, against what the allocator then really needs.

    python benchmarks/memory_fit.py RUNS                  4 GPUs of one host, about a minute
    python benchmarks/memory_fit.py RUNS --cpu --quick    the launches alone: no GPU, no snapshot

First the same model with micro-batches of 1, 2, 4 and 8, one GPU each. From the first run alone the
peaks of the others are predicted. Then selective and full recomputation, whose effect was
predicted, and micro-batches of 4 and 8 with so little memory that, as predicted, the one fits and
the other does not. RUNS/result.json has all of it; the snapshots stay in RUNS.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
SNAPSHOT, LIMIT = "MEMORY_FIT_SNAPSHOT", "MEMORY_FIT_LIMIT"
WIDE, QUICK = (4096, 32, 2048), (64, 4, 64)
"""Hidden size, heads, sequence."""
FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"


def train() -> None:
    """In a process of training: Megatron's script, the allocator's history, maybe a limit."""
    import torch

    if torch.cuda.is_available():
        if os.environ[LIMIT] != "none":
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(int(os.environ[LIMIT]) / total)
        torch.cuda.memory._record_memory_history(max_entries=500_000, stacks="python")
    sys.argv = [str(REPOSITORY / "pretrain_gpt.py"), *sys.argv[1:]]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        if torch.cuda.is_available():
            torch.cuda.memory._dump_snapshot(os.environ[SNAPSHOT])


class Launch:
    """One training on one GPU.

    Args:
        runs: where its folder goes.
        name: of the folder.
        gpu: index.
        batch: micro-batch.
        flags: more flags.
        limit: bytes that torch may take from the GPU.
    """

    def __init__(
        self, runs: Path, name: str, gpu: int, options: argparse.Namespace, batch: int,
        flags: str = "", limit: int | None = None,
    ) -> None:  # fmt: skip
        self.name, self.folder, self.batch = name, runs / name, batch
        self.folder.mkdir(parents=True)
        hidden, heads, sequence = QUICK if options.quick else WIDE
        command = [
            sys.executable, __file__, "--num-layers", "4", "--hidden-size", str(hidden),
            "--num-attention-heads", str(heads), "--seq-length", str(sequence),
            "--max-position-embeddings", str(sequence), "--micro-batch-size", str(batch),
            "--global-batch-size", "8", "--train-iters", "5", "--lr", "1e-4", "--bf16",
            "--mock-data", "--tokenizer-type", "NullTokenizer",
            "--vocab-size", "256" if options.quick else "32000", "--log-interval", "1",
            "--eval-interval", "1000", "--eval-iters", "0", "--transformer-impl", "local",
            "--torch-profile", "--torch-profile-dir", str(self.folder),
            "--torch-profile-preset", "light", "--torch-profile-skip-first", "3", *flags.split(),
        ]  # fmt: skip
        environment = {
            "CUDA_DEVICE_MAX_CONNECTIONS": "1",
            "PYTHONWARNINGS": "ignore",
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "" if options.cpu else str(gpu),
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(options.port + gpu),
            SNAPSHOT: str(self.folder / "rank-0.memory_snapshot.pickle"),
            LIMIT: str(limit or "none"),
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
        }
        self._log = (self.folder / "train.log").open("w")
        self.process = subprocess.Popen(
            command, stdout=self._log, stderr=subprocess.STDOUT, env=environment
        )

    def end(self, seconds: float) -> str:
        """How it ended: `trained`, `out of memory`, or what else."""
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return f"stopped after {seconds:.0f} s"
        text = (self.folder / "train.log").read_text()
        for snapshot in self.folder.glob("*.pickle"):
            for window in self.folder.glob("*/iter-*"):
                snapshot.rename(window / snapshot.name)
        if status == 0:
            return "trained"
        print(text[-1500:], flush=True)
        return "out of memory" if "OutOfMemoryError" in text else f"exit {status}"


def asked(*arguments: object) -> dict[str, Any]:
    """The answer of `torch-trace memory --json`."""
    command = [sys.executable, "-m", "megatron.torch_trace", "memory", *map(str, arguments)]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, cwd=REPOSITORY)
    if done.returncode not in (0, 3):
        print(done.stderr, flush=True)
        return {}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, help="one folder a launch goes here")
    parser.add_argument("--longest", type=float, default=60, help="seconds a launch may take")
    parser.add_argument("--port", type=int, default=29700, help="the first of four")
    parser.add_argument("--quick", action="store_true", help="a small model")
    parser.add_argument("--cpu", action="store_true", help="no GPU, even if there is one")
    options = parser.parse_args()
    runs = options.runs
    first = [
        Launch(runs, f"micro-batch-{batch}", gpu, options, batch)
        for gpu, batch in enumerate((1, 2, 4, 8))
    ]
    result: dict[str, Any] = {"ends": {one.name: one.end(options.longest) for one in first}}
    fit = {} if options.cpu else asked(first[0].folder, "--fit")
    if fit:
        needs = {one["micro_batch"]: one for one in fit["fit"]["ranks"][0]["needs"]}
        result["fit"] = fit["fit"]
        result["categories"] = fit["categories"]
        limit = (needs[4]["bytes"] + needs[4]["error"] + needs[8]["bytes"]) // 2
    else:
        needs, limit = {}, None
    second = [
        Launch(runs, "selective", 0, options, 1, "--recompute-activations"),
        Launch(runs, "full", 1, options, 1, FULL),
        Launch(runs, "limited-4", 2, options, 4, limit=limit),
        Launch(runs, "limited-8", 3, options, 8, limit=limit),
    ]
    result["ends"] |= {one.name: one.end(options.longest) for one in second}
    result["limit_bytes"] = limit
    result["peaks"] = {}
    for one in [*first, *second[:2]] if fit else []:
        answer = asked(one.folder)
        result["peaks"][one.name] = {
            "batch": one.batch,
            "peak_bytes": answer.get("peak_bytes"),
            "reserved_bytes": answer.get("reserved_bytes"),
            "categories": answer.get("categories"),
            "needs": needs.get(one.batch),
        }
    (runs / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({key: result[key] for key in ("ends", "limit_bytes", "peaks")}, indent=1))


if __name__ == "__main__":
    train() if SNAPSHOT in os.environ else main()
