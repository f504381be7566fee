# SPDX-License-Identifier: Apache-2.0
"""How much slower is a recorded iteration than one without the profiler, and where does it go?

    python benchmarks/faithful.py --json faithful.json             one GPU, both models, all rows
    python benchmarks/faithful.py --models launch-bound --rows light modules --windows 3
    python benchmarks/faithful.py --cpu --quick                    small models, on the CPU

Megatron's own loop (`pretrain_gpt.py`), one launch for each row, several windows in each, 13
iterations apart: CUPTI is torn down between them. Recorded iterations, those without the profiler
on both sides, and the one after the window are what capture writes beside each trace
(`artifacts/rank-0.iterations.json`). With the times of a window come those of what begins and ends
it, and what Python's garbage collector did in the recorded iteration.

A row may be given flags of one's own: --rows 'with-stack=--torch-profile-with-stack'. --cupti-off
switches kinds of CUPTI's records off that torch has switched on: --cupti-off runtime driver.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from attached_cupti import KINDS, cupti

REPOSITORY = Path(__file__).resolve().parents[1]
ROWS = {
    "default": "",
    "modules": "--torch-profile-spans phases modules",
    "cuda": "--torch-profile-activities cuda",
    "stack": "--torch-profile-with-stack",
    "shapes-flops": "--torch-profile-record-shapes --torch-profile-with-flops",
    "light": "--torch-profile-preset light",
    "light-modules": "--torch-profile-preset light --torch-profile-spans modules",
}
MODELS = {"gpu-bound": (8, 4096, 32, 2048), "launch-bound": (24, 1024, 16, 1024)}
"""Layers, hidden size, heads, sequence."""
QUICK = {"gpu-bound": (2, 64, 4, 64), "launch-bound": (4, 32, 4, 32)}
MICRO_BATCHES = 8
FIRST, APART = 10, 13
TIMES, CUPTI_OFF = "FAITHFUL_BENCHMARK_TIMES", "FAITHFUL_BENCHMARK_CUPTI_OFF"


class Times:
    """What begins and ends a window, and garbage collections, in this process."""

    def __init__(self) -> None:
        self.parts: list[dict[str, float]] = []
        self._collecting = 0
        gc.callbacks.append(self._collects)

    def install(self) -> None:
        """Time the functions of the recorder, one dictionary for each window."""
        from megatron.torch_profile.record import kineto, open_window
        from megatron.torch_profile.record.window_end import WindowEnds

        self._time(kineto, "prepared", begins=True)
        self._time(open_window, "Spans")
        self._time(kineto, "start")
        self._time(open_window, "TraceNotes")
        self._time(WindowEnds, "end")
        for name in ("prepared", "start"):
            self._switch_off(kineto, name, os.environ.get(CUPTI_OFF, "").split())

    def _switch_off(self, owner: Any, name: str, kinds: list[str]) -> None:
        original = getattr(owner, name)

        def switching(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            library = cupti()
            for kind in kinds:
                library.cuptiActivityDisable(ctypes.c_int(KINDS[kind]))
            return result

        if kinds:
            setattr(owner, name, switching)

    def _time(self, owner: Any, name: str, *, begins: bool = False) -> None:
        original = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            if begins:
                self.parts.append({})
            began = time.perf_counter_ns()
            try:
                return original(*args, **kwargs)
            finally:
                now = time.perf_counter_ns()
                part = self.parts[-1]
                part[f"{name}_ms"] = (now - began) / 1e6
                if name == "TraceNotes":
                    part["gc_passes"] = part["gc_ms"] = 0.0
                elif name == "end":
                    part["recorded"] = True

        setattr(owner, name, timed)

    def _collects(self, phase: str, info: dict[str, int]) -> None:
        now = time.perf_counter_ns()
        if phase == "start":
            self._collecting = now
        elif self.parts and "gc_passes" in self.parts[-1] and "recorded" not in self.parts[-1]:
            self.parts[-1]["gc_passes"] += 1
            self.parts[-1]["gc_ms"] += (now - self._collecting) / 1e6


def train() -> None:
    """In a process of training: Megatron's script, with the recorder's parts timed."""
    times = Times()
    times.install()
    sys.argv = [str(REPOSITORY / "pretrain_gpt.py"), *sys.argv[1:]]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        Path(os.environ[TIMES]).write_text(json.dumps(times.parts))


def launch(options: argparse.Namespace, model: str, flags: str, folder: Path) -> None:
    """One row; its log is `folder`/train.log."""
    layers, hidden, heads, sequence = (QUICK if options.quick else MODELS)[model]
    vocabulary, micro_batches = ("256", 2) if options.quick else ("32000", MICRO_BATCHES)
    last = FIRST + APART * options.windows + 2
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
        str(options.nproc), __file__,
        "--num-layers", str(layers), "--hidden-size", str(hidden),
        "--num-attention-heads", str(heads), "--seq-length", str(sequence),
        "--max-position-embeddings", str(sequence), "--micro-batch-size", "1",
        "--global-batch-size", str(micro_batches * options.nproc), "--train-iters", str(last),
        "--lr", "1e-4", "--bf16", "--mock-data", "--tokenizer-type", "NullTokenizer",
        "--vocab-size", vocabulary, "--log-interval", "1", "--eval-interval", "1000",
        "--eval-iters", "0", "--torch-profile", "--torch-profile-skip-first", str(FIRST),
        "--torch-profile-frequency", str(APART), "--torch-profile-skip-first-wait",
        "--torch-profile-repeat", str(options.windows), "--torch-profile-partials", "never",
        "--torch-profile-dir", str(folder), *flags.split(), *options.megatron,
    ]  # fmt: skip
    environment = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "PYTHONWARNINGS": "ignore", **os.environ}
    environment[TIMES] = str(folder / "times.json")
    environment[CUPTI_OFF] = " ".join(options.cupti_off)
    environment["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    if options.cpu:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    log = folder / "train.log"
    with log.open("w") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, env=environment)
    if done.returncode:
        what = f"{model}, {flags or 'default'}: exit {done.returncode}"
        sys.exit(f"{what}\n{log.read_text()[-3000:]}")


def windows_of(folder: Path) -> list[dict[str, Any]]:
    """Each window of a launch, in milliseconds and as multiples of its undisturbed iteration."""
    parts = json.loads((folder / "times.json").read_text())
    rows = []
    for path in sorted(folder.rglob("rank-*0.iterations.json")):
        told = json.loads(path.read_text())
        undisturbed = median(ns for _, ns in told["undisturbed"])
        row: dict[str, Any] = {
            "undisturbed_ms": undisturbed / 1e6,
            "spread_ms": [edge(ns for _, ns in told["undisturbed"]) / 1e6 for edge in (min, max)],
            "start_ms": told["start_ns"] / 1e6,
        }
        for name in ("warm_up", "recorded", "following"):
            (_, ns) = told[name][-1]
            row[f"{name}_ms"], row[name] = ns / 1e6, ns / undisturbed
        number = len(rows)
        row["parts"] = parts[number] if number < len(parts) else {}
        (trace,) = path.parents[1].glob("rank-*0.pt.trace.json.gz")
        row["trace_mb"] = trace.stat().st_size / 1e6
        rows.append(row)
    return rows


def line(model: str, row: str, windows: list[dict[str, Any]]) -> str:
    """A row of the table: medians, and the least and the most in brackets."""

    def times(name: str) -> str:
        found = sorted(window[name] for window in windows)
        return f"{median(found):.3f} ({found[0]:.2f} to {found[-1]:.2f})"

    def ms(name: str) -> str:
        return f"{median(window[name] for window in windows):.1f}"

    if not windows:
        return f"| {model} | {row} | 0 | | | | | |"
    return (
        f"| {model} | {row} | {len(windows)} | {ms('undisturbed_ms')} | {times('warm_up')} "
        f"| {ms('start_ms')} | {times('recorded')} | {times('following')} |"
    )


def parts_line(windows: list[dict[str, Any]]) -> str:
    """Medians of what begins and ends a window, and of the collector in the recorded iteration."""
    names = list(dict.fromkeys(name for window in windows for name in window["parts"]))
    found: Callable[[str], list[float]] = lambda name: [  # noqa: E731
        window["parts"][name] for window in windows if name in window["parts"]
    ]
    return ", ".join(f"{n} {median(found(n)):.2f}" for n in names if n != "recorded")


def wanted(given: list[str]) -> dict[str, str]:
    """The rows, by name or with flags of one's own."""
    return {
        name: flags if sign else ROWS[name]
        for name, sign, flags in (row.partition("=") for row in given)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--rows", nargs="+", default=list(ROWS), metavar="ROW[=FLAGS]")
    parser.add_argument("--windows", type=int, default=5, help="of each launch")
    parser.add_argument("--nproc", type=int, default=1)
    parser.add_argument("--seconds", type=float, help="begin no launch after so many")
    parser.add_argument("--quick", action="store_true", help="small models")
    parser.add_argument("--cpu", action="store_true", help="no GPU, even if there is one")
    parser.add_argument("--cupti-off", nargs="+", default=[], choices=list(KINDS))
    parser.add_argument("--json", type=Path, help="every window of every row goes here")
    parser.add_argument("megatron", nargs="*", help="after --: further arguments of Megatron")
    options = parser.parse_args()
    print(
        "| model | row | windows | undisturbed ms | warm-up | start ms | recorded "
        "| iteration after |\n|---|---|---|---|---|---|---|---|",
        flush=True,
    )
    began, told = time.monotonic(), []
    for model in options.models:
        for row, flags in wanted(options.rows).items():
            if options.seconds and time.monotonic() - began > options.seconds:
                print(f"| {model} | {row} | no time left | | | | | |", flush=True)
                continue
            with tempfile.TemporaryDirectory() as folder:
                launch(options, model, flags, Path(folder))
                windows = windows_of(Path(folder))
            told.append({"model": model, "row": row, "flags": flags, "windows": windows})
            print(line(model, row, windows), flush=True)
            print(f"  {parts_line(windows)}", file=sys.stderr, flush=True)
            if options.json:
                options.json.write_text(json.dumps({"schema": 1, "rows": told}, indent=1))


if __name__ == "__main__":
    train() if TIMES in os.environ else main()
