# SPDX-License-Identifier: Apache-2.0
"""Losses and gradient norms with everything of ours on, beside those of a run without it.

    python benchmarks/same_losses.py RUNS            2 ranks, all presets, 90 seconds on 2 GPUs
    python benchmarks/same_losses.py RUNS --cpu      over gloo, a small model

All runs train the same model side by side, data parallel with the distributed optimizer and both
overlaps: without a flag of ours, with each preset, with everything at once, and the last two once
more in Megatron's deterministic mode. One line for each run, `pass` or `FAIL`: losses and gradient
norms of all iterations and ranks the same to the bit, and a trace of each rank.
RUNS/same_losses.json has them all.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from megatron_features import OVERLAPS, SMALL, TINY, losses_of
from memory_trainings import REPOSITORY, Training, visible_gpus

sys.path.insert(0, str(REPOSITORY))

from megatron.torch_profile.config import PRESETS

RANKS, MICROBATCHES = 2, 4
PLAIN, DETERMINISTIC = "plain", "deterministic"
EVERYTHING = (
    "--torch-profile-preset full --torch-profile-with-modules --torch-profile-monitor "
    "--torch-profile-trigger file signal slow-iteration --torch-profile-on-hang 60 "
    "--torch-profile-memory-timeline --torch-profile-execution-trace --torch-profile-stacks "
    "--torch-profile-on-oom"
)
RUNS = {
    PLAIN: "",
    **{f"preset {name}": f"--torch-profile-preset {name}" for name in PRESETS},
    "everything": EVERYTHING,
    f"{PLAIN}, {DETERMINISTIC}": "",
    f"everything, {DETERMINISTIC}": EVERYTHING,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, help="one folder a training goes here")
    parser.add_argument("--seconds", type=float, default=110, help="for everything")
    parser.add_argument("--port", type=int, default=29_700, help="the first of one for each")
    parser.add_argument("--cpu", action="store_true", help="no GPU, even if there is one")
    options = parser.parse_args()
    if options.runs.exists():
        parser.error(f"{options.runs}: exists; name a folder that does not")
    end = time.monotonic() + options.seconds
    have = 0 if options.cpu else visible_gpus()
    gpus = [*range(RANKS)] if have >= RANKS else [None] * RANKS
    trainings = {
        name: _started(options.runs, name, ours, gpus, options.port + number)
        for number, (name, ours) in enumerate(RUNS.items())
    }
    ended = {name: training.end(end) for name, training in trainings.items()}
    result: dict[str, Any] = {}
    for name, training in trainings.items():
        if not RUNS[name]:
            continue
        faults = _faults(trainings[_plain_of(name)], training, ended[_plain_of(name)], ended[name])
        result[name] = faults
        print("FAIL" if faults else "pass", f"{name}:", "; ".join(faults) or "the same to the bit")
    (options.runs / "same_losses.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"{sum(not faults for faults in result.values())} of {len(result)} pass")


def _plain_of(name: str) -> str:
    return f"{PLAIN}, {DETERMINISTIC}" if name.endswith(DETERMINISTIC) else PLAIN


def _started(runs: Path, name: str, ours: str, gpus: list[Any], port: int) -> Training:
    folder = runs / name.replace(", ", "-").replace(" ", "-")
    mode, environment = "", {}
    if name.endswith(DETERMINISTIC):
        mode = "--deterministic-mode"
        environment = {"NCCL_ALGO": "Ring", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    if ours:
        ours = (
            f"--torch-profile --torch-profile-ranks all --torch-profile-iterations 6-7 {ours} "
            f"--torch-profile-dir {folder}"
        )
    training = Training(
        folder,
        f"--train-iters 9 --global-batch-size {RANKS * MICROBATCHES} {OVERLAPS} {mode} {ours}",
        gpus, port, SMALL if gpus[0] is not None else TINY, environment=environment,
    )  # fmt: skip
    training.begin()
    return training


def _faults(plain: Training, training: Training, plain_ended: str, ended: str) -> list[str]:
    for one, how in ((plain, plain_ended), (training, ended)):
        if how != "trained":
            return [f"{one.folder.name}: {how}: {one.excerpt(400)}"]
    faults = []
    if losses_of(plain) != losses_of(training):
        faults.append("other losses")
    if _gradient_norms(plain) != _gradient_norms(training):
        faults.append("other gradient norms")
    traces = sorted(training.folder.rglob("*.pt.trace.json*"))
    if len(traces) != RANKS:
        faults.append(f"{len(traces)} of {RANKS} traces")
    return faults


def _gradient_norms(training: Training) -> list[list[str]]:
    return [[one["gradient_norm"] for one in facts["iterations"]] for facts in training.facts]


if __name__ == "__main__":
    main()
