# SPDX-License-Identifier: Apache-2.0
"""Does `analyze` name faults of a real training, and foresee what mending each of them gains?

    python benchmarks/recorded_faults.py OUT                         2 GPUs, about 100 s
    python benchmarks/recorded_faults.py OUT --layout tp2 --seconds 95
    python benchmarks/recorded_faults.py OUT --cpu --quick           small model, over gloo
    python benchmarks/recorded_faults.py OUT --again                 judge kept traces once more

One launch of `pretrain_gpt.py`. In each cycle of iterations one rank is late in another way: it
sleeps, or its GPU spins. A cycle has blocks of healthy and of faulty iterations without the
profiler, in turn, then a window of faulty ones. What the fault costs is the median difference of
blocks that follow each other, by the host's clock: hosts are slower and faster from second to
second. What `analyze` foresees comes from the window alone. OUT/faults.json has all of it,
OUT/traces.tar the traces, as far as 5 MB go, those of wrong answers first.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from late_rank import (
    BEFORE,
    BLOCK,
    CYCLE,
    FIRST,
    LAYERS,
    MICRO_BATCHES,
    Fault,
    LateRank,
    schedule,
)
from recorded_answers import Answer, answer_of

REPOSITORY = Path(__file__).resolve().parents[1]
ROLE = "RECORDED_FAULTS_OUT"
MOST_BYTES = 5 << 20
LAYOUTS = {
    "dp2": "--use-distributed-optimizer --torch-profile-preset light",
    "dp2-operators": "--use-distributed-optimizer --torch-profile-spans phases",
    "tp2": "--tensor-model-parallel-size 2 --torch-profile-preset light",
}


def train() -> None:
    """In a process of training."""
    from megatron.torch_profile.record import iteration_times

    out = Path(os.environ[ROLE])
    told = json.loads((out / "schedule.json").read_text())
    # As many iterations before a window as have its fault are told with its trace.
    iteration_times._MOST = BEFORE
    LateRank([Fault(**one) for one in told], out).install()
    sys.argv = [str(REPOSITORY / "pretrain_gpt.py"), *sys.argv[1:]]
    runpy.run_path(sys.argv[0], run_name="__main__")


def launch(options: argparse.Namespace, faults: list[Fault], until: float) -> str:
    """Train until all cycles are done or the time is over; how it ended."""
    hidden, heads, sequence = (32, 4, 32) if options.quick else (1024, 16, 1024)
    windows = [f"{fault.window[0]}-{fault.window[-1]}" for fault in faults]
    (options.out / "schedule.json").write_text(json.dumps([asdict(one) for one in faults]))
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        __file__, "--num-layers", str(LAYERS), "--hidden-size", str(hidden),
        "--num-attention-heads", str(heads), "--seq-length", str(sequence),
        "--max-position-embeddings", str(sequence), "--micro-batch-size", "1",
        "--global-batch-size", str(MICRO_BATCHES * (1 if options.layout == "tp2" else 2)),
        "--train-iters", str(FIRST + CYCLE * len(faults) + BLOCK), "--lr", "1e-4", "--bf16",
        "--mock-data", "--num-workers", "0", "--tokenizer-type", "NullTokenizer",
        "--vocab-size", "256" if options.quick else "8000", "--log-interval", "100",
        "--eval-interval", "100000", "--eval-iters", "0", "--transformer-impl", "local",
        "--torch-profile", "--torch-profile-ranks", "all", "--torch-profile-dir",
        str(options.out / "traces"), "--torch-profile-iterations", *windows,
        "--torch-profile-compression", "zstd", "--torch-profile-partials", "never",
        *LAYOUTS[options.layout].split(),
    ]  # fmt: skip
    environment = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "PYTHONWARNINGS": "ignore", **os.environ}
    environment[ROLE] = str(options.out)
    environment["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    if options.cpu:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    with (options.out / "train.log").open("w") as log:
        child = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            return f"exit {child.wait(max(1.0, until - time.monotonic()))}"
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return "stopped, since the time was over"


def truth_of(fault: Fault, lengths: dict[int, float]) -> tuple[float, float, float] | None:
    """A healthy iteration, what the fault adds to it, and that number's standard error; ns."""
    blocks = [[lengths[one] for one in block[1:] if one in lengths] for block in fault.blocks]
    if not all(len(block) == BLOCK - 1 for block in blocks):
        return None
    means = [fmean(block) for block in blocks]
    added = [(after - before) * (-1) ** n for n, (before, after) in enumerate(pairwise(means))]
    middle = median(added)
    apart = median(abs(one - middle) for one in added)
    return fmean(means[::2]), middle, 1.86 * apart / len(added) ** 0.5


def lengths_of(out: Path) -> dict[int, float]:
    """Iteration -> how long it took, the mean of the ranks, ns."""
    ranks = []
    for file in sorted(out.glob("rank-*.begins")):
        begins = [int(line) for line in file.read_text().splitlines() if line]
        ranks.append([end - begin for begin, end in pairwise(begins)])
    return {n + 1: sum(many) / len(many) for n, many in enumerate(zip(*ranks, strict=False))}


def windows_of(out: Path, faults: list[Fault]) -> Iterator[tuple[Fault, Path]]:
    """The windows that both ranks have written."""
    for fault in faults:
        for folder in out.glob(f"traces/*/iter-{fault.window[0]:07}-*"):
            if len(list(folder.glob("*.pt.trace.json.zst"))) == 2:
                yield fault, folder


def keep(out: Path, folders: list[Path]) -> None:
    """The traces in one file, as far as it may be large."""
    size = 0
    with tarfile.open(out / "traces.tar", "w") as tar:
        for folder in folders:
            files = sorted(folder.glob("*.trace.json.zst"))
            size += sum(file.stat().st_size for file in files)
            if size > MOST_BYTES:
                return
            for file in files:
                tar.add(file, f"{folder.name}/{file.name}")


def judged(fault: Fault, folder: Path, truth: tuple[float, float, float]) -> dict[str, Any]:
    """One window: what is said of it and what is true."""
    # What follows the window is healthy; what came before it, and is told in the traces, is not.
    for file in folder.glob("artifacts/*.iterations.json"):
        file.unlink()
    answer = answer_of(folder, fault.kind, fault.rank)
    healthy, cost, error = truth
    named = answer.position is not None and answer.names(fault.kind, fault.micro_batch)
    return {
        **asdict(fault),
        "window": folder.name,
        "healthy_ns": round(healthy),
        "cost_ns": round(cost),
        "cost_error_ns": round(error),
        "answer": asdict(answer),
        "named": named,
        "close": answer.is_close(cost),
        "right": named and answer.is_close(cost),
    }


def line(row: dict[str, Any]) -> str:
    """A row as text."""
    answer = Answer(**row["answer"])
    cost = row["cost_ns"]
    foreseen = answer.foreseen_ns

    def ms(value: float | None) -> str:
        return "?" if value is None else f"{value / 1e6:.1f}"

    off = "?" if foreseen is None else f"{foreseen / cost - 1:+.1%}"
    return (
        f"{'right' if row['right'] else 'WRONG'}  {row['window']} {row['kind']:9} "
        f"rank {row['rank']} {row['ms']} ms: {ms(row['healthy_ns'])}, costs {ms(cost)} "
        f"± {ms(row['cost_error_ns'])}; foreseen {ms(foreseen)} ({off}), "
        f"recorded gain {ms(answer.gain_ns)} ± {ms(answer.error_ns)}, asked {ms(answer.asked_ns)}, "
        f"finding {answer.position} in `{answer.name}` {answer.notes[:90]}"
    )


def judge(out: Path, faults: list[Fault], workers: int) -> list[dict[str, Any]]:
    """All windows that were written, told as they are judged."""
    lengths = lengths_of(out)
    rows = []
    with ProcessPoolExecutor(workers) as pool:
        waiting = []
        for fault, folder in windows_of(out, faults):
            truth = truth_of(fault, lengths)
            if truth is None:
                print(f"{folder.name}: too few iterations around it", flush=True)
            else:
                waiting.append((folder, pool.submit(judged, fault, folder, truth)))
        for folder, one in waiting:
            try:
                rows.append(one.result())
                print(line(rows[-1]), flush=True)
            except Exception as error:  # the other windows are worth their answers
                print(f"{folder.name}: {type(error).__name__}: {error}", flush=True)
            (out / "faults.json").write_text(json.dumps({"schema": 1, "faults": rows}, indent=1))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="a new folder")
    parser.add_argument("--layout", choices=list(LAYOUTS), default="dp2")
    parser.add_argument("--first", type=int, default=0, help="number of the first fault, from 0")
    parser.add_argument("--count", type=int, default=24, help="faults")
    parser.add_argument("--seconds", type=float, default=100, help="for all, judging included")
    parser.add_argument("--workers", type=int, default=min(12, os.cpu_count() or 1))
    parser.add_argument("--quick", action="store_true", help="a small model")
    parser.add_argument("--cpu", action="store_true", help="no GPU, even if there is one")
    parser.add_argument("--again", action="store_true", help="judge what OUT holds once more")
    options = parser.parse_args()
    began = time.monotonic()
    options.out = options.out.resolve()
    if options.again:
        told = json.loads((options.out / "schedule.json").read_text())
        faults = [Fault(**one) for one in told]
    else:
        if (options.out / "schedule.json").exists():
            sys.exit(f"{options.out} holds a run; name another folder, nothing is overwritten.")
        options.out.mkdir(parents=True, exist_ok=True)
        faults = schedule(options.layout, options.first, options.count)
        end = launch(options, faults, began + 0.84 * options.seconds)
        print(f"{options.layout}: {end} after {time.monotonic() - began:.0f} s", flush=True)
        if end.startswith("exit") and end != "exit 0":
            print((options.out / "train.log").read_text()[-2000:], flush=True)
    rows = judge(options.out, faults, options.workers)
    right = sum(row["right"] for row in rows)
    print(f"{right} of {len(rows)} right: {sum(row['named'] for row in rows)} named, "
          f"{sum(row['close'] for row in rows)} within 10 %", flush=True)  # fmt: skip
    if not options.again:
        wrong = sorted(rows, key=lambda row: row["right"])
        keep(options.out, [next(options.out.glob(f"traces/*/{row['window']}")) for row in wrong])


if __name__ == "__main__":
    train() if ROLE in os.environ else main()
