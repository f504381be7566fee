# SPDX-License-Identifier: Apache-2.0
"""Runs that differ in one thing, recorded, so that a prediction can be held against the truth.

    python benchmarks/pairs.py RUNS                       all configurations, 4 GPUs
    python benchmarks/pairs.py RUNS --only dp4-late-forward-12 dp4 --seconds 200
    python benchmarks/pairs.py RUNS --only tp2 tp2-sp     2 GPUs (dp2, tp2); `one`: 1
    python benchmarks/pairs.py RUNS --cpu --quick         small models, over gloo

Every configuration is one launch of `pretrain_gpt.py`: 14 iterations without the profiler, one
warm-up, the recorded ones, and more without the profiler. The folder RUNS/NAME holds the traces,
`configuration.json` (arguments, fault, environment) and `train.log`; the undisturbed iterations
are what capture writes beside the traces. Which runs make a pair is in
`benchmarks/predictions.toml`: record its base, predict, commit the prediction, and only then record
the changed run (`benchmarks/predictions.py`).
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import math
import os
import runpy
import shlex
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
FAULT = "PAIRS_FAULT"

MODELS = {"wide": (4096, 32, 2048), "narrow": (1024, 16, 1024)}
"""Hidden size, heads, sequence: bound by the GPU, and by launches."""
QUICK = {"wide": (64, 4, 64), "narrow": (32, 4, 32)}

DP4 = "--use-distributed-optimizer"
OVERLAP = f"{DP4} --overlap-grad-reduce --overlap-param-gather"
TP2 = "--tensor-model-parallel-size 2"
TP2PP2 = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"


SPANS = "--torch-profile-spans phases"
MODULES = f"{SPANS} modules"
GRAPHS = "--cuda-graph-impl local --te-rng-tracker"


@dataclass(frozen=True)
class Configuration:
    """One launch. `fault` is `WHERE:RANK:MS`: that rank sleeps there, each time; or `pageable`:
    no rank pins the batches that its data loader gives."""

    model: str
    layers: int
    flags: str
    fault: str = ""
    micro_batches: int = 8
    environment: dict[str, str] = field(default_factory=dict)
    profile: str = SPANS
    active: int = 3
    after: int = 10
    nproc: int = 4


def _small(
    model: str, flags: str = "", fault: str = "", nproc: int = 2, profile: str = SPANS
) -> Configuration:
    """4 layers and 4 micro-batches: a launch takes half a minute."""
    return Configuration(
        model, 4, flags, fault, micro_batches=4, profile=profile, after=40, nproc=nproc
    )


CONFIGURATIONS = {
    "dp4": Configuration("wide", 4, OVERLAP),
    "dp4-late-forward-12": Configuration("wide", 4, OVERLAP, "forward:2:12"),
    "dp4-late-forward-40": Configuration("wide", 4, OVERLAP, "forward:1:40"),
    "dp4-late-optimizer-80": Configuration("wide", 4, OVERLAP, "optimizer:3:80"),
    "dp4-late-data-60": Configuration("wide", 4, f"{OVERLAP} --num-workers 1", "data:2:60"),
    "dp4-no-overlap": Configuration("wide", 4, DP4),
    "dp4-no-overlap-slow-nccl": Configuration(
        "wide", 4, DP4, environment={"NCCL_MAX_NCHANNELS": "2"}
    ),
    "tp2pp2": Configuration("wide", 8, TP2PP2),
    "tp2pp2-light": Configuration("wide", 8, TP2PP2, profile="--torch-profile-preset light"),
    "narrow-dp2-light": Configuration(
        "narrow", 4, OVERLAP, profile="--torch-profile-preset light", nproc=2
    ),
    "tp2pp2-m16": Configuration("wide", 8, TP2PP2, micro_batches=16),
    "tp2pp2-v2": Configuration("wide", 8, f"{TP2PP2} --num-layers-per-virtual-pipeline-stage 2"),
    "tp2pp2-moved": Configuration(
        "wide", 8, f"{TP2PP2} --decoder-first-pipeline-num-layers 5"
    ),
    "tp2pp2-sp": Configuration("wide", 8, f"{TP2PP2} --sequence-parallel"),
    "narrow-dp4": Configuration("narrow", 12, OVERLAP),
    "narrow-dp4-late-forward-8": Configuration("narrow", 12, OVERLAP, "forward:2:8"),
    "narrow-dp4-late-forward-30": Configuration("narrow", 12, OVERLAP, "forward:0:30"),
    "narrow-dp4-no-overlap": Configuration("narrow", 12, DP4),
    "narrow-dp4-graphs": Configuration(
        "narrow", 12, f"{OVERLAP} {GRAPHS}"
    ),
    "dp2": _small("wide", OVERLAP),
    "dp2-no-overlap": _small("wide", DP4),
    "dp2-pageable": _small("wide", OVERLAP, "pageable:all:0"),
    "tp2": _small("wide", TP2),
    "tp2-rms": _small("wide", f"{TP2} --normalization RMSNorm"),
    "tp2-sp": _small("wide", f"{TP2} --normalization RMSNorm --sequence-parallel"),
    "one": _small("wide", nproc=1),
    "one-pageable": _small("wide", fault="pageable:all:0", nproc=1),
    "narrow-one": _small("narrow", nproc=1, profile=MODULES),
    "narrow-one-graphs": _small("narrow", GRAPHS, nproc=1),
    "narrow-dp2": _small("narrow", OVERLAP, profile=MODULES),
    "narrow-dp2-graphs": _small("narrow", f"{OVERLAP} {GRAPHS}"),
    "narrow-tp2pp2": Configuration("narrow", 12, TP2PP2),
    "narrow-tp2pp2-v2": Configuration(
        "narrow", 12, f"{TP2PP2} --num-layers-per-virtual-pipeline-stage 3"
    ),
}  # fmt: skip

SLEEPS = {
    "forward": ("megatron.core.models.gpt", "GPTModel", "forward"),
    "optimizer": ("megatron.core.optimizer.optimizer", "ChainedOptimizer", "step"),
    "data": ("megatron.core.datasets.gpt_dataset", "MockGPTDataset", "__getitem__"),
}


def sleeping(fault: str) -> None:
    """In a process of training: `fault`'s rank sleeps there, each time."""
    where, rank, ms = fault.split(":")
    if where == "pageable":
        _without_pinning()
    if os.environ.get("RANK", "0") != rank:
        return
    module, cls, name = SLEEPS[where]
    owner = getattr(importlib.import_module(module), cls)
    original = getattr(owner, name)

    def slept(*args: object, **kwargs: object) -> object:
        time.sleep(int(ms) / 1000)
        return original(*args, **kwargs)

    setattr(owner, name, slept)


def _without_pinning() -> None:
    loader: Any = importlib.import_module("torch.utils.data").DataLoader
    original = loader.__init__

    @functools.wraps(original)
    def unpinned(*args: object, **kwargs: object) -> None:
        original(*args, **{**kwargs, "pin_memory": False})

    loader.__init__ = unpinned


def train() -> None:
    """In a process of training: Megatron's script with the fault."""
    if os.environ[FAULT] != "none":
        sleeping(os.environ[FAULT])
    sys.argv = [str(REPOSITORY / "pretrain_gpt.py"), *sys.argv[1:]]
    runpy.run_path(sys.argv[0], run_name="__main__")


def launch(run: Configuration, folder: Path, options: argparse.Namespace) -> str:
    """Train once into `folder`; how it ended, in a few words."""
    hidden, heads, sequence = (QUICK if options.quick else MODELS)[run.model]
    parallel = run.flags.split()
    sizes = [int(size) for flag, size in pairwise(parallel) if flag.endswith("-parallel-size")]
    data = run.nproc // math.prod(sizes)
    skip, after = (4, 4) if options.quick else (14, run.after)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
        str(run.nproc), __file__,
        "--num-layers", str(run.layers), "--hidden-size", str(hidden),
        "--num-attention-heads", str(heads), "--seq-length", str(sequence),
        "--max-position-embeddings", str(sequence), "--micro-batch-size", "1",
        "--global-batch-size", str(run.micro_batches * max(1, data)),
        "--train-iters", str(skip + 1 + run.active + after),
        "--lr", "1e-4", "--bf16", "--mock-data", "--tokenizer-type", "NullTokenizer",
        "--vocab-size", "256" if options.quick else "32000", "--log-interval", "1",
        "--eval-interval", "1000", "--eval-iters", "0", "--transformer-impl", "local",
        "--torch-profile", "--torch-profile-ranks", "all", "--torch-profile-dir", str(folder),
        "--torch-profile-skip-first", str(skip), "--torch-profile-active", str(run.active),
        "--torch-profile-compression", "zstd", "--torch-profile-partials", "never",
        *parallel, *run.profile.split(),
    ]  # fmt: skip
    environment = {
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "PYTHONWARNINGS": "ignore",
        **os.environ,
        **run.environment,
        FAULT: run.fault or "none",
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
    }
    if options.cpu:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    told = {**asdict(run), "command": shlex.join(command[command.index(__file__) + 1 :])}
    (folder / "configuration.json").write_text(json.dumps(told, indent=1))
    with (folder / "train.log").open("w") as log:
        try:
            done = subprocess.run(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment,
                timeout=options.longest,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"stopped after {options.longest:.0f} s"
    return f"exit {done.returncode}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, help="one folder a configuration goes here")
    parser.add_argument("--only", nargs="+", choices=list(CONFIGURATIONS), metavar="NAME")
    parser.add_argument("--seconds", type=float, help="begin no launch after so many")
    parser.add_argument("--longest", type=float, default=100, help="seconds a launch may take")
    parser.add_argument("--quick", action="store_true", help="small models")
    parser.add_argument("--cpu", action="store_true", help="no GPU, even if there is one")
    options = parser.parse_args()
    names = options.only or list(CONFIGURATIONS)
    if there := [name for name in names if (options.runs / name).exists()]:
        sys.exit(f"{options.runs / there[0]} exists; name another folder, nothing is overwritten.")
    began = time.monotonic()
    for name in names:
        if options.seconds and time.monotonic() - began > options.seconds:
            print(f"{name}: no time left", flush=True)
            continue
        (folder := options.runs / name).mkdir(parents=True)
        started = time.monotonic()
        end = launch(CONFIGURATIONS[name], folder, options)
        print(f"{name}: {end}, {time.monotonic() - started:.0f} s", flush=True)
        if end != "exit 0":
            print((folder / "train.log").read_text()[-1500:], flush=True)


if __name__ == "__main__":
    train() if FAULT in os.environ else main()
