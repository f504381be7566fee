# SPDX-License-Identifier: Apache-2.0
"""What memory snapshots cost, how much they leave unknown, and what an out-of-memory error says.

    python benchmarks/memory_capture.py RUNS              one GPU, about a minute
    python benchmarks/memory_capture.py RUNS --cpu        the launches alone: no GPU, no snapshot

The same small model without the profiler, with a trace, and with a trace and a snapshot: losses
must be the same to the bit. Then configurations whose snapshot must tell the peak that the
allocator itself counted, with little unknown; and one that runs out of memory, by a limit.
RUNS/memory_capture.json has all of it; snapshots larger than 2 MB are removed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import runpy
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
FACTS, LIMIT = "MEMORY_CAPTURE_FACTS", "MEMORY_CAPTURE_LIMIT"
WINDOW = (8, 9)
_KEEP_BYTES = 2 << 20

TRACE = f"--torch-profile --torch-profile-iterations {WINDOW[0]}-{WINDOW[1]}"
SNAPSHOT = f"{TRACE} --torch-profile-memory-timeline"
FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
CONFIGURATIONS = {
    "plain": "",
    "trace": TRACE,
    "snapshot": SNAPSHOT,
    "selective": f"{SNAPSHOT} --use-distributed-optimizer --recompute-granularity selective",
    "full": f"{SNAPSHOT} --torch-profile-memory-snapshot-stacks all {FULL}",
    "out-of-memory": f"{TRACE} --torch-profile-on-oom --micro-batch-size 8 --global-batch-size 8",
}
"""The first three differ in what is recorded alone."""


def train() -> None:
    """In a process of training: Megatron's script, its losses, the peak of the window."""
    import torch
    from megatron.training import training

    losses: dict[int, str] = {}
    facts: dict[str, Any] = {"losses": losses, "peak_bytes": None}
    gpu = torch.cuda.is_available()
    if gpu and os.environ[LIMIT] != "none":
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(int(os.environ[LIMIT]) / total)
    step, log = training.train_step, training.training_log

    def train_step(*args: Any, **kwargs: Any) -> Any:
        iteration = training.get_args().curr_iteration + 1
        if gpu and iteration == WINDOW[0]:
            torch.cuda.reset_peak_memory_stats()
        if gpu and iteration == WINDOW[1] + 1:
            facts["peak_bytes"] = facts["peak_bytes"] or torch.cuda.max_memory_allocated()
        return step(*args, **kwargs)

    def training_log(loss_dict: Any, *args: Any, **kwargs: Any) -> Any:
        for loss in loss_dict.values():
            losses[len(losses) + 1] = float(loss).hex()
        return log(loss_dict, *args, **kwargs)

    training.train_step, training.training_log = train_step, training_log
    sys.argv = [str(REPOSITORY / "pretrain_gpt.py"), *sys.argv[1:]]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        Path(os.environ[FACTS]).write_text(json.dumps(facts))


def launch(name: str, folder: Path, port: int, *, cpu: bool) -> subprocess.Popen[bytes]:
    """Begin one training."""
    hidden, heads, sequence, layers = (64, 4, 64, 2) if cpu else (2048, 16, 2048, 6)
    folder.mkdir(parents=True)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1",
        "--master-addr", "127.0.0.1", "--master-port", str(port), __file__,
        "--num-layers", str(layers), "--hidden-size", str(hidden),
        "--num-attention-heads", str(heads), "--seq-length", str(sequence),
        "--max-position-embeddings", str(sequence), "--micro-batch-size", "1",
        "--global-batch-size", "4", "--train-iters", "14", "--lr", "1e-4", "--bf16",
        "--mock-data", "--tokenizer-type", "NullTokenizer",
        "--vocab-size", "256" if cpu else "32000", "--log-interval", "1",
        "--eval-interval", "1000", "--eval-iters", "0", "--transformer-impl", "local",
        *CONFIGURATIONS[name].split(),
        *(["--torch-profile-dir", str(folder)] if CONFIGURATIONS[name] else []),
    ]  # fmt: skip
    environment = {
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "PYTHONWARNINGS": "ignore",
        **os.environ,
        FACTS: str(folder / "facts.json"),
        LIMIT: str(12 << 30) if name == "out-of-memory" else "none",
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
    }
    if cpu:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    with (folder / "train.log").open("w") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)


def outcome(folder: Path) -> dict[str, Any]:
    """What one training left."""
    from megatron import torch_trace

    log = (folder / "train.log").read_text()
    elapsed = [float(ms) for ms in re.findall(r"per iteration \(ms\): ([\d.]+)", log)]
    facts = folder / "facts.json"
    found: dict[str, Any] = {
        **(json.loads(facts.read_text()) if facts.is_file() else {}),
        "iterations_ms": elapsed,
        "said": [one for one in log.splitlines() if re.search(r"\[torch-profile (mem|out)", one)],
        "snapshots": [],
    }
    for path in sorted(folder.rglob("*.memory_snapshot.pickle")):
        began = time.monotonic()
        for answer in torch_trace.memory(path):
            categories = {one.value: size for one, size in answer.categories.items() if size}
            peak = found.get("peak_bytes")
            found["snapshots"].append(
                {
                    "path": str(path.relative_to(folder)),
                    "file_bytes": path.stat().st_size,
                    "read_seconds": round(time.monotonic() - began, 2),
                    "entries": answer.entries,
                    "peak_bytes": answer.peak_bytes,
                    "off_the_allocators": answer.peak_bytes / peak - 1 if peak else None,
                    "categories": categories,
                    "unknown_share": categories.get("unknown", 0) / max(1, answer.peak_bytes),
                    "holders": [
                        [one.category.value, one.size, one.blocks, *one.stack[:2]]
                        for one in answer.holders[:12]
                    ],
                }
            )
        owners = path.with_name(path.name.replace("snapshot.pickle", "owners.json"))
        found["snapshots"][-1]["owners"] = len(json.loads(owners.read_text())["ranges"])
        if path.stat().st_size > _KEEP_BYTES:
            path.unlink()
    for path in folder.rglob("*.live_bytes.json"):
        found["live_bytes"] = json.loads(path.read_text())
    for path in folder.rglob("*.pt.trace.json.gz"):
        path.unlink()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, help="one folder a configuration goes here")
    parser.add_argument("--cpu", action="store_true", help="no GPU, even if there is one")
    parser.add_argument("--longest", type=float, default=70, help="seconds for all launches")
    parser.add_argument("--only", nargs="+", choices=list(CONFIGURATIONS), metavar="NAME")
    options = parser.parse_args()
    sys.path.insert(0, str(REPOSITORY))
    began = time.monotonic()
    running = {
        name: launch(name, options.runs / name, 29_600 + number, cpu=options.cpu)
        for number, name in enumerate(options.only or CONFIGURATIONS)
    }
    result: dict[str, Any] = {}
    for name, process in running.items():
        try:
            status: Any = process.wait(max(1.0, options.longest - (time.monotonic() - began)))
        except subprocess.TimeoutExpired:
            process.kill()
            status = "stopped"
        try:
            result[name] = {"exit": status, **outcome(options.runs / name)}
        except Exception as error:
            result[name] = {"exit": status, "error": f"{type(error).__name__}: {error}"}
        print(json.dumps({name: result[name]})[:3000], flush=True)
        (options.runs / "memory_capture.json").write_text(json.dumps(result, indent=1))
    same = [result[name].get("losses") for name in ("plain", "trace", "snapshot") if name in result]
    print("losses are the same to the bit:", all(one and one == same[0] for one in same))


if __name__ == "__main__":
    train() if FACTS in os.environ else main()
