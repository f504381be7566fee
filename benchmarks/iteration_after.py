# SPDX-License-Identifier: Apache-2.0
"""How long does the end of a window hold training, and what becomes of the iterations after it?

    python benchmarks/iteration_after.py                              CPU or GPU
    python benchmarks/iteration_after.py --events 1200000 --json results.jsonl

The same launch-bound loop is profiled four times, each in a process of its own: with torch's own
`.json.gz` export, with `sync`, with a forked child after the stop, and with the stop in a thread
beside training. Held is what training did not get between its last recorded iteration and its
next one, the profiler's stop included and the wait for the GPU left out. Complete is when the file
is there. Kernels, operators and arrows are counted in the file, and must be the same everywhere.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from attached_cupti import KINDS
from attached_cupti import cupti as cupti_library
from export_stall import Training

from megatron.torch_profile.export.background import Exporter
from megatron.torch_profile.export.endings import Ending
from megatron.torch_profile.export.own_process import resident_bytes
from megatron.torch_profile.export.trace_export import Export
from megatron.torch_profile.plan.schedule import Window
from megatron.torch_profile.record import cupti, kineto
from megatron.torch_trace.format.file_names import TraceName

MODES = ("torch", "sync", "fork", "thread")
FOLLOWING = 6
_TRIED = 8
"""Micro-batches of the step that tells how many events one makes."""
COUNTED = {
    "kernels": rb'"cat": "kernel"',
    "operators": rb'"cat": "cpu_op"',
    "annotations": rb'"cat": "user_annotation"',
    "launch arrows": rb'"ph": "s"[^}]*?"cat": "ac2g"',
    "backward arrows": rb'"ph": "s"[^}]*?"cat": "fwdbwd"',
    "python frames": rb'"cat": "python_function"',
}


class Loop:
    """Trains, and times its steps."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.cuda = torch.cuda.is_available()

    def wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def step(self) -> float:
        began = time.perf_counter()
        self.training.step()
        self.wait()
        return time.perf_counter() - began


def profiler(stacks: bool, beside: bool, ours: bool) -> Any:
    """Not prepared yet."""
    options: dict[str, Any] = {"with_stack": stacks}
    if ours and (experimental := kineto.experimental_config(beside=beside, stacks=stacks)):
        options["experimental_config"] = experimental
    return torch.profiler.profile(**options)


def recorded(loop: Loop, stacks: bool, beside: bool, ours: bool) -> tuple[Any, float]:
    """A profiler that records and has recorded one step, and the seconds of that."""
    made = profiler(stacks, beside, ours)
    made.prepare_trace()
    loop.step()
    made.start_trace()
    with torch.profiler.record_function("ProfilerStep#1"):
        seconds = loop.step()
    return made, seconds


def window(
    mode: str, loop: Loop, stacks: bool, folder: Path, undisturbed: int, *, quiet: bool
) -> dict[str, Any]:
    """One window, its end, and what follows."""
    before = [loop.step() for _ in range(undisturbed)]
    resident = resident_bytes()
    made, step = recorded(loop, stacks, mode == "thread", mode != "torch")
    exporter = Exporter(600)
    what = Export(0, Window(1, 1, 1), (1,), folder, TraceName(0, 1))
    loop.wait()
    began = time.perf_counter()
    if mode == "thread":
        if quiet:
            off = cupti_library().cuptiActivityDisable
            for kind in KINDS.values():
                off(kind)
        ended = kineto.end_beside(made)
        assert ended is not None
        stop, waited = ended
        exporter.end_beside(stop, what, waited_seconds=waited, expected_mb=0, writers=1)
        stopped = time.perf_counter()
    else:
        made.stop_trace()
        stopped = time.perf_counter()
        if mode == "torch":
            torch.profiler.tensorboard_trace_handler(str(folder), use_gzip=True)(made)
        else:
            ending = Ending.TRAINING if mode == "sync" else Ending.FORK
            exporter.hand_over(made, what, ending, stop_seconds=0, expected_mb=0, writers=1)
    held, complete = time.perf_counter() - began, None
    after, peak = [], resident_bytes()
    while len(after) < FOLLOWING or exporter.in_flight:
        after.append(loop.step())
        peak = max(peak, resident_bytes())
        exporter.poll()
        if complete is None and not exporter.in_flight:
            complete = time.perf_counter() - began
    exporter.free_saved()
    (file,) = folder.glob("*.json.gz")
    usual = statistics.median(before)
    return {
        "mode": mode,
        "stacks": stacks,
        "held_ms": held * 1e3,
        "stop_ms": (stopped - began) * 1e3,
        "undisturbed_ms": usual * 1e3,
        "recorded_ms": step * 1e3,
        "after_ms": after[0] * 1e3,
        "after_over_undisturbed": after[0] / usual,
        "worst_after_over_undisturbed": max(after) / usual,
        "median_while_written_over_undisturbed": statistics.median(after) / usual,
        "complete_s": complete,
        "grown_mb": (peak - resident) / 1e6,
        "left_mb": (resident_bytes() - resident) / 1e6,
        **counts(file),
    }


def counts(file: Path) -> dict[str, Any]:
    """What the finished file holds."""
    from zlib_ng import gzip_ng

    text = gzip_ng.open(file).read()
    found = {name: len(re.findall(pattern, text)) for name, pattern in COUNTED.items()}
    ends = re.findall(rb'"name": "ProfilerStep#1"[^}]*?"ts": ([0-9.]+),\s*"dur": ([0-9.]+)', text)
    times = [float(ts) for ts in re.findall(rb'"ph": "X"[^{]*?"ts": ([0-9.]+)', text)]
    last = max((float(ts) + float(dur) for ts, dur in ends), default=0.0)
    return {
        **found,
        "events": text.count(b'"ph":'),
        "raw_mb": len(text) / 1e6,
        "begin_later_than_1_s_after_the_step": sum(ts > last + 1e6 for ts in times),
    }


def one_mode(options: argparse.Namespace) -> None:
    """In this process: one mode, as many windows as wanted; a line of JSON for each."""
    cuda = torch.cuda.is_available()
    torch.set_num_threads(1)
    # As the recorder does it; CUPTI that stays would slow what follows.
    cupti.prepare(torch.version.cuda, cuda_graphs=False, given=os.environ)
    os.environ.setdefault("KINETO_LOG_LEVEL", "4")
    loop = Loop(Training(options, "cuda" if cuda else "cpu"))
    for _ in range(3):
        loop.step()
    for number in range(options.windows):
        folder = Path(tempfile.mkdtemp(dir=options.folder))
        row = window(
            options.mode,
            loop,
            options.stacks == "yes",
            folder,
            options.undisturbed,
            quiet=options.quiet == "yes",
        )
        given = {"quiet": options.quiet, "micro_batches": options.micro_batches}
        row = {"window": number + 1, **row, **given}
        shutil.rmtree(folder)
        print("ROW " + json.dumps(row), flush=True)


def micro_batches_for(events: int, options: argparse.Namespace) -> int:
    """How many micro-batches make a step of so many events; tried in a process of its own."""
    trial = argparse.Namespace(**{**vars(options), "micro_batches": _TRIED, "windows": 1})
    (row,) = run("sync", "no", trial)
    return max(1, round(events / row["events"] * _TRIED))


def run(mode: str, stacks: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One mode in a process of its own."""
    command = [sys.executable, __file__, "--mode", mode, "--stacks", stacks]
    command += ["--quiet", options.quiet]
    for name in (
        "layers", "hidden", "sequence", "micro_batches", "windows", "undisturbed", "folder"
    ):  # fmt: skip
        if (value := getattr(options, name)) is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    rows = [json.loads(line[4:]) for line in done.stdout.splitlines() if line.startswith("ROW ")]
    if done.returncode:
        print(f"{mode}, stacks {stacks}: status {done.returncode}", flush=True)
    return rows


def compare(options: argparse.Namespace) -> None:
    """All modes."""
    if options.events:
        options.micro_batches = micro_batches_for(options.events, options)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"{device}, torch {torch.__version__}, {options.micro_batches} micro-batches", flush=True)
    for wanted in options.runs:
        mode, *more = wanted.split(",")
        changed = {
            "windows": 2 if "twice" in more else 1,
            "quiet": "yes" if "quiet" in more else "no",
        }
        given = argparse.Namespace(**{**vars(options), **changed})
        for row in run(mode, "yes" if "stacks" in more else "no", given):
            print(json.dumps(row), flush=True)
            if options.json:
                with Path(options.json).open("a") as file:
                    file.write(json.dumps(row) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--sequence", type=int, default=64)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--events", type=int, help="as many micro-batches as make so many events")
    parser.add_argument(
        "--runs",
        nargs="+",
        default=[*MODES, "fork,stacks", "thread,stacks"],
        help="MODE[,stacks][,twice][,quiet]: with Python stacks, with a second window after the "
        "first, with CUPTI's records off before the profiler is stopped",
    )
    parser.add_argument("--mode", choices=MODES, help="this one only, in this process")
    parser.add_argument("--stacks", choices=("no", "yes"), default="no", help=argparse.SUPPRESS)
    parser.add_argument("--quiet", choices=("no", "yes"), default="no", help=argparse.SUPPRESS)
    parser.add_argument("--windows", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help="where traces are written and removed again")
    parser.add_argument("--undisturbed", type=int, default=5, help="iterations before a window")
    parser.add_argument("--json", help="a line for each window is added here")
    options = parser.parse_args()
    (one_mode if options.mode else compare)(options)


if __name__ == "__main__":
    main()
