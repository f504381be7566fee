# SPDX-License-Identifier: Apache-2.0
"""What the monitor costs, whether it names ranks that sleep, and windows that are asked for.

    python benchmarks/watch.py OUT                           2 GPUs, below 100 s
    python benchmarks/watch.py OUT --gpu-bound --seconds 200 a larger model
    python benchmarks/watch.py OUT --cpu --quick --ranks 4   a small model, over gloo

One launch of `pretrain_gpt.py`. A rank sleeps in three iterations one after the other, 20 times:
other ranks, other parts, other times. Then windows are asked for: by a file, by a signal, and by
iterations that are several times as long. Until the time is up, blocks of 32 iterations with the
monitor and without it alternate in the same processes, in the order on, off, off, on. Answers are
printed as they come, and are in OUT/watch.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from watch_cost import cost
from watched_rank import (
    EPISODE,
    EPISODES,
    LATEST,
    OUT,
    RANKS,
    REPOSITORY,
    SETTLE,
    SLOW_AT,
    SLOW_LONG,
    TIMES,
    sleep_of,
)

TRAINING = Path(__file__).with_name("watched_rank.py")

SIZES = {
    "quick": (2, 32, 4, 32, 1),
    "launch-bound": (2, 1024, 16, 1024, 1),
    "gpu-bound": (2, 4096, 32, 2048, 4),
}
"""Layers, hidden size, heads, sequence, micro-batch."""


class Launch:
    """The launch with its folder."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.folder, self.ranks = options.out, options.ranks
        self.folder.mkdir(parents=True)
        layers, hidden, heads, sequence, batch = SIZES[options.model]
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone",
            "--nproc-per-node", str(options.ranks), str(TRAINING),
            "--num-layers", str(layers), "--hidden-size", str(hidden),
            "--num-attention-heads", str(heads), "--seq-length", str(sequence),
            "--max-position-embeddings", str(sequence), "--micro-batch-size", str(batch),
            "--global-batch-size", str(batch * max(2, options.ranks)),
            "--tensor-model-parallel-size", str(min(2, options.ranks)),
            "--train-iters", str(LATEST), "--lr", "1e-4", "--bf16", "--mock-data",
            "--tokenizer-type", "NullTokenizer", "--log-interval", "50",
            "--vocab-size", "256" if options.model == "quick" else "8000",
            "--eval-interval", str(LATEST), "--eval-iters", "0", "--transformer-impl", "local",
            "--distributed-timeout-minutes", "10", "--use-distributed-optimizer",
            "--overlap-grad-reduce", "--overlap-param-gather",
            "--torch-profile", "--torch-profile-iterations", str(LATEST),
            "--torch-profile-ranks", "all", "--torch-profile-monitor",
            "--torch-profile-trigger", "file", "signal", "slow-iteration",
            "--torch-profile-trigger-factor", "8", "--torch-profile-trigger-ranks", "slowest",
            "--torch-profile-trigger-windows", "1", "--torch-profile-dir", str(self.folder),
        ]  # fmt: skip
        environment = {
            "CUDA_DEVICE_MAX_CONNECTIONS": "1",
            "PYTHONWARNINGS": "ignore",
            **os.environ,
            OUT: str(self.folder),
            RANKS: str(options.ranks),
            TIMES: str(options.times),
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
        }
        if options.cpu:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        self.log_file = self.folder / "train.log"
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment
            )

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    @property
    def iteration(self) -> int:
        """About the one that runs."""
        begins = self.begins()
        return max(begins) if begins else 0

    def begins(self) -> dict[int, float]:
        """When iterations began on rank 0."""
        return {at: when for at, (when, _) in self._lines().items()}

    def in_parts(self) -> set[int]:
        """Iterations that rank 0 measured in their parts."""
        return {at for at, (_, parts) in self._lines().items() if parts}

    def _lines(self) -> dict[int, tuple[float, bool]]:
        file = self.folder / "begins.txt"
        words = map(str.split, file.read_text().splitlines() if file.exists() else [])
        return {int(at): (float(when), parts == "1") for at, when, parts in words}

    def until(self, seen: Callable[[], Any], end: float) -> bool:
        """Wait for something; False where it does not come in time."""
        while not seen():
            if time.monotonic() > end or self.process.poll() is not None:
                return bool(seen())
            time.sleep(0.3)
        return True

    def answers(self) -> list[dict[str, Any]]:
        """What became of the requests."""
        files = sorted(self.folder.rglob("requests/*.answer.json"))
        return [json.loads(file.read_text()) for file in files]

    def end(self) -> None:
        """End it with all its ranks."""
        for pid in re.findall(r"^pid (\d+)", self.log, re.MULTILINE):
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.kill()
        self.process.wait()


def named(log: str, ranks: int) -> dict[str, Any]:
    """Lines about slow ranks against what was done to ranks."""
    said = re.findall(
        r"rank (\d) \(.*?\) is slow since iteration (\d+): (\S+ \S+) longer in (.*?) than its "
        r"peers, in an iteration of .*? \(seen in iteration (\d+)\)",
        log,
    )
    begins = [SETTLE + 1 + episode * EPISODE for episode in range(EPISODES)]
    right: dict[int, Any] = {}
    others = []
    for rank, since, excess, part, seen in said:
        line = (int(rank), int(since), excess, part, int(seen))
        begin = max((one for one in begins if one <= int(since)), default=0)
        planned = sleep_of(begin, ranks) if begin else None
        if planned and planned[0] == int(rank) and int(seen) <= begin + 2 and begin not in right:
            right[begin] = (planned, line)
        elif not SLOW_AT <= int(since) < SLOW_AT + SLOW_LONG:
            others.append(line)
    parts = sum(planned[1] in line[3] for planned, line in right.values())
    missed = [(one, sleep_of(one, ranks)) for one in begins if one not in right]
    return {
        "named": len(right), "of": EPISODES, "part_right": parts, "missed": missed,
        "other_lines": others, "lines": [line for _, line in right.values()],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    models = parser.add_mutually_exclusive_group()
    models.add_argument(
        "--quick", dest="model", action="store_const", const="quick", help="a small model"
    )
    models.add_argument(
        "--gpu-bound", dest="model", action="store_const", const="gpu-bound",
        help="a model whose iterations vary less than those of the usual one, bound by launches",
    )  # fmt: skip
    parser.add_argument("--cpu", action="store_true", help="no GPU, even if there is one")
    parser.add_argument("--ranks", type=int, default=2, help="1, 2 or 4 [default: %(default)s]")
    parser.add_argument("--times", type=float, default=1.0, help="longer sleeps, on a busy CPU")
    parser.add_argument("--seconds", type=float, default=98)
    options = parser.parse_args()
    options.model = options.model or "launch-bound"
    if options.out.exists():
        parser.error(f"{options.out}: exists; name a folder that does not")
    began = time.monotonic()
    end = began + options.seconds
    answers: dict[str, Any] = {}

    def tell(what: str, answer: Any) -> None:
        answers[what] = answer
        print(f"{time.monotonic() - began:5.1f} s {what}: {json.dumps(answer)}", flush=True)
        (options.out / "watch.json").write_text(json.dumps(answers, indent=1))

    def see_cost() -> None:
        asked = [one for one in launch.answers() if "first" in one]
        seen = cost(
            launch.begins(), launch.in_parts(), [(one["first"], one["last"]) for one in asked]
        )
        if seen is not None:
            tell("cost", seen)

    launch = Launch(options)
    try:
        launch.until(lambda: launch.iteration > SETTLE, end)
        tell("iterations begin", launch.iteration)
        launch.until(lambda: launch.iteration >= SLOW_AT, end)
        time.sleep(1.5)
        tell("slow", named(launch.log, options.ranks))
        folders = [path.parent for path in options.out.rglob("run.json")]
        if folders:
            tool = [sys.executable, "-m", "megatron.torch_trace", "trigger", str(folders[0])]
            environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
            subprocess.run(
                [*tool, "--iterations", "2", "--wait", "0"], env=environment, check=False
            )
            (pid,) = re.findall(rf"^pid (\d+) rank {options.ranks - 1}$", launch.log, re.MULTILINE)
            os.kill(int(pid), signal.SIGUSR2)
        while time.monotonic() < end - 1 and launch.process.poll() is None:
            time.sleep(min(10.0, max(0.1, end - 1 - time.monotonic())))
            done = [one for one in launch.answers() if one["state"] in ("done", "failed")]
            if len(done) > len(answers.get("windows", ())):
                tell("windows", done)
            see_cost()
    finally:
        launch.end()
        tell("slow", named(launch.log, options.ranks))
        see_cost()


if __name__ == "__main__":
    main()
