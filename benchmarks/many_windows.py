# SPDX-License-Identifier: Apache-2.0
"""What a training holds between many windows: memory in use, and resident memory.

    python benchmarks/many_windows.py OUT              320 iterations with 64 windows, all flags
    python benchmarks/many_windows.py OUT --alone      the same training without profiling

One rank of `pretrain_gpt.py` on the CPU, with the flags of the long run (long_run.py). A line is a
part of the training. *Between windows* are the iterations with least in use, at most 1.2 MB more.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from long_run_launch import of_profiling, of_training
from long_run_plan import Plan
from long_run_rank import REPOSITORY, _heap

from megatron.torch_profile.export.own_process import resident_bytes

_SAMPLES = "MANY_WINDOWS_SAMPLES"
_BETWEEN_BYTES = 1_200_000
_EVERY = 2


def train() -> None:
    """In the process of training: its memory after every second iteration."""
    from megatron.training import training

    step, done = training.train_step, 0
    file = Path(os.environ[_SAMPLES]).open("w", buffering=1)  # noqa: SIM115

    def sampled(*args: Any, **kwargs: Any) -> Any:
        nonlocal done
        result = step(*args, **kwargs)
        done += 1
        if done % _EVERY == 0:
            used, free = _heap()
            sample = {"at": done, "used": used, "free": free, "resident": resident_bytes()}
            file.write(json.dumps(sample) + "\n")
        return result

    training.train_step = sampled
    sys.argv = [str(REPOSITORY / "pretrain_gpt.py"), *sys.argv[2:]]
    runpy.run_path(sys.argv[0], run_name="__main__")


def launched(out: Path, plan: Plan, *, alone: bool) -> list[dict[str, int]]:
    """One training, and what it held."""
    samples = out / "samples.jsonl"
    flags = of_training(plan, out / "checkpoints")
    if not alone:
        flags += of_profiling(plan, out / "traces")
    environment = {
        "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29511", **os.environ, "CUDA_VISIBLE_DEVICES": "", "RANK": "0",
        "LOCAL_RANK": "0", "WORLD_SIZE": "1", "TMPDIR": str(out), _SAMPLES: str(samples),
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    with (out / "train.log").open("wb") as log:
        subprocess.run(
            [sys.executable, __file__, "--train", *flags],
            stdout=log, stderr=subprocess.STDOUT, env=environment, check=True,
        )  # fmt: skip
    return [json.loads(line) for line in samples.read_text().splitlines()]


def lines(samples: list[dict[str, int]], parts: int) -> list[str]:
    """The table."""
    found = [
        "| iterations | in use between windows, MB | resident between | most resident | free in "
        "arenas |",
        "|---|---:|---:|---:|---:|",
    ]
    size = -(-len(samples) // parts)
    for at in range(0, len(samples), size):
        part = samples[at : at + size]
        least = min(one["used"] for one in part)
        between = [one for one in part if one["used"] <= least + _BETWEEN_BYTES]
        used, resident, free = (
            median(one[name] for one in between) / 1e6 for name in ("used", "resident", "free")
        )
        most = max(one["resident"] for one in part) / 1e6
        found.append(
            f"| to {part[-1]['at']} | {used:.1f} | {resident:.1f} | {most:.1f} | {free:.1f} |"
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="a new folder")
    parser.add_argument("--iterations", type=int, default=320, help="[default: %(default)s]")
    parser.add_argument("--cycle", type=int, default=5, help="iterations [default: %(default)s]")
    parser.add_argument("--parts", type=int, default=8, help="lines [default: %(default)s]")
    parser.add_argument("--alone", action="store_true", help="without profiling")
    options = parser.parse_args()
    if options.out.exists():
        parser.error(f"{options.out}: exists; name a folder that does not")
    if min(options.iterations, options.cycle, options.parts) < 1:
        parser.error("--iterations, --cycle, --parts: must be 1 or more")
    out = options.out.resolve()
    out.mkdir(parents=True)
    often = max(1, options.iterations // 4)
    plan = Plan(options.iterations, options.cycle, often, often, 60, (), (), (), ())
    samples = launched(out, plan, alone=options.alone)
    windows = len([*(out / "traces").glob("*/iter-*/rank-0.pt.trace.json.gz")])
    print(f"{samples[-1]['at']} iterations, {windows} windows\n")
    print("\n".join(lines(samples, options.parts)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train()
    else:
        main()
