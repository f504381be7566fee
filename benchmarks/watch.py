# SPDX-License-Identifier: Apache-2.0
"""What the monitor costs, whether it names a rank that sleeps, and whether hangs are named right.

    python benchmarks/watch.py OUT                 4 GPUs, below 90 s
    python benchmarks/watch.py OUT --cpu --quick   small models, over gloo

Two launches of `pretrain_gpt.py`. In the first, blocks of ten iterations with the monitor and
without it alternate; then a rank sleeps in three iterations, again and again, each time another
one; then one rank's data come late for seconds; then one is stopped by SIGSTOP. In the second,
which starts meanwhile, one rank leaves out a collective. OUT/watch.json has the answers.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
ROLE, QUICK = "WATCH_ROLE", "WATCH_QUICK"
SETTLE, BLOCK = 12, 10
FEW = os.environ.get(QUICK) == "1" or "--quick" in sys.argv
BLOCKS = 4 if FEW else 16
EPISODE, SLEEPS = 9, 3
EPISODES = 4 if FEW else 20
PAIRED = SETTLE + BLOCK * BLOCKS
NAMED = PAIRED + EPISODE * EPISODES
LATE_AT, STOP_AT = NAMED + 6, NAMED + 12
HANG_SECONDS, LATE_SECONDS = 8.0, 11.0
SLEEP_SECONDS = 0.04
SKIPS_AT = 5


def sleeper(iteration: int) -> tuple[int, str] | None:
    """Who sleeps in an iteration, and where; the last iterations of an episode are quiet."""
    episode, within = divmod(iteration - PAIRED - 1, EPISODE)
    if not 0 <= episode < EPISODES or within >= SLEEPS:
        return None
    return episode * 3 % 4, ("forward", "data")[episode % 2]


class FaultyRank:
    """In a process of training: what happens in which iteration."""

    def __init__(self) -> None:
        self.rank = int(os.environ["RANK"])
        self.quick = os.environ[QUICK] == "1"
        self.iteration = 0
        self.done: set[tuple[int, str]] = set()
        self.begins: list[tuple[int, float, bool]] = []
        self.seams: Any = None
        self.clock: Any = None
        self.on = True

    def at(self, where: str) -> None:
        """Training is in the forward, or asks for data: for the first time in this iteration."""
        if (self.iteration, where) in self.done:
            return
        self.done.add((self.iteration, where))
        if sleeper(self.iteration) == (self.rank, where):
            time.sleep(SLEEP_SECONDS * (25 if self.quick else 1))
        if self.iteration == LATE_AT and (self.rank, where) == (1, "data"):
            time.sleep(LATE_SECONDS)
        if self.iteration == STOP_AT and (self.rank, where) == (2, "forward"):
            os.kill(os.getpid(), signal.SIGSTOP)

    def begins_step(self, heartbeat: Any, iteration: int) -> None:
        """Switch the monitor on or off, block by block."""
        self.iteration = iteration
        if self.clock is None:
            self.clock = heartbeat.clock
        wanted = not SETTLE < iteration <= PAIRED or (iteration - SETTLE - 1) // BLOCK % 2 == 0
        if wanted != self.on:
            self.on = wanted
            self.clock._now = None
            heartbeat.clock = self.clock if wanted else None
            (self.seams.apply if wanted else self.seams.remove)()
        self.begins.append((iteration, time.perf_counter(), self.on))
        if iteration == PAIRED + 1 and self.rank == 0:
            Path(os.environ["WATCH_OUT"], "begins.json").write_text(json.dumps(self.begins))

    def install(self) -> None:
        from megatron.core.models.gpt import GPTModel
        from megatron.core.rerun_state_machine import RerunDataIterator

        from megatron.torch_profile.monitor.heartbeat import Heartbeat
        from megatron.torch_profile.monitor.iterations.seams import Seams

        self._before(GPTModel, "forward", "forward")
        self._before(RerunDataIterator, "__next__", "data")
        begin_step, apply, faults = Heartbeat.begin_step, Seams.apply, self

        def begin(heartbeat: Heartbeat, iteration: int) -> None:
            faults.begins_step(heartbeat, iteration)
            begin_step(heartbeat, iteration)

        def applied(seams: Seams) -> None:
            faults.seams = seams
            apply(seams)

        Heartbeat.begin_step, Seams.apply = begin, applied  # type: ignore[method-assign]

    def _before(self, owner: Any, name: str, where: str) -> None:
        original = getattr(owner, name)

        def late(*args: Any, **kwargs: Any) -> Any:
            self.at(where)
            return original(*args, **kwargs)

        setattr(owner, name, late)


def skip_one() -> None:
    """In a process of training: the last rank leaves out a reduction of its tensor parallelism."""
    from megatron.core.tensor_parallel import mappings

    from megatron.torch_profile.followers import followers

    original = mappings._reduce
    skipped: list[int] = []

    def reduce(*args: Any, **kwargs: Any) -> Any:
        heartbeat = followers.heartbeat
        if heartbeat is not None and heartbeat.iteration == SKIPS_AT and not skipped:
            skipped.append(1)
            print("rank 3 leaves out a reduction", flush=True)
            return args[0]
        return original(*args, **kwargs)

    if os.environ["RANK"] == "3":
        mappings._reduce = reduce


def train() -> None:
    """In a process of training."""
    print("pid", os.getpid(), flush=True)
    if os.environ[ROLE] == "skip":
        skip_one()
    else:
        FaultyRank().install()
    sys.argv = [str(REPOSITORY / "pretrain_gpt.py"), *sys.argv[1:]]
    runpy.run_path(sys.argv[0], run_name="__main__")


class Launch:
    """One launch with its folder."""

    def __init__(self, role: str, options: argparse.Namespace) -> None:
        self.folder = options.out / role
        self.folder.mkdir(parents=True)
        layers, hidden, heads, sequence = (
            (3, 3072, 24, 2048) if role == "watch" else (2, 512, 8, 512)
        )
        if options.quick:
            layers, hidden, heads, sequence = 2, 32, 4, 32
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4",
            __file__, "--num-layers", str(layers), "--hidden-size", str(hidden),
            "--num-attention-heads", str(heads), "--seq-length", str(sequence),
            "--max-position-embeddings", str(sequence), "--micro-batch-size", "2",
            "--global-batch-size", "16", "--tensor-model-parallel-size", "2",
            "--train-iters", str(STOP_AT + 5), "--lr", "1e-4", "--bf16", "--mock-data",
            "--tokenizer-type", "NullTokenizer", "--log-interval", "1",
            "--vocab-size", "256" if options.quick else "32000",
            "--eval-interval", "1000", "--eval-iters", "0", "--transformer-impl", "local",
            "--distributed-timeout-minutes", "10", "--use-distributed-optimizer",
            "--overlap-grad-reduce", "--overlap-param-gather",
            "--torch-profile", "--torch-profile-iterations", str(STOP_AT + 4),
            "--torch-profile-dir", str(self.folder),
            "--torch-profile-on-hang", str(HANG_SECONDS),
            *(["--torch-profile-monitor"] if role == "watch" else []),
        ]  # fmt: skip
        environment = {
            "CUDA_DEVICE_MAX_CONNECTIONS": "1",
            "PYTHONWARNINGS": "ignore",
            **os.environ,
            ROLE: role,
            QUICK: "1" if options.quick else "0",
            "WATCH_OUT": str(self.folder),
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
        }
        if options.cpu:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        self.log = self.folder / "train.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment
            )

    def until(self, seen: Callable[[], bool], end: float) -> bool:
        """Wait for something; False where it does not come in time."""
        while not seen():
            if time.monotonic() > end or self.process.poll() is not None:
                return seen()
            time.sleep(0.2)
        return True

    def records(self, iteration: int, suffix: str = ".hang.json") -> list[str]:
        return [one.name for one in self.folder.rglob(f"*iter-{iteration:07d}*{suffix}")]

    def hang(self) -> Any:
        from megatron import torch_trace

        try:
            (run,) = (path.parent for path in self.folder.rglob("run.json"))
            answer = torch_trace.hang(run)
            causes = [blame.cause.value for blame in answer.blames]
            return {"culprits": answer.culprits, "causes": causes, "verdict": answer.verdict}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def end(self) -> None:
        """End it with all its ranks, also those that are stopped."""
        for pid in re.findall(r"^pid (\d+)", self.log.read_text(errors="replace"), re.MULTILINE):
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.kill()
        self.process.wait()


def cost(folder: Path) -> dict[str, Any]:
    """Iterations with the monitor against those without, neighbouring blocks against each other."""
    begins = json.loads((folder / "begins.json").read_text())
    blocks: list[tuple[bool, list[float]]] = []
    for (iteration, start, on), (_, end, _) in pairwise(begins):
        within = (iteration - SETTLE - 1) % BLOCK
        if SETTLE < iteration <= PAIRED:
            if within == 0:
                blocks.append((on, []))
            if within >= 2:  # what was switched has settled
                blocks[-1][1].append(end - start)
    medians = [(on, median(times)) for on, times in blocks if times]
    pairs = [
        100.0 * ((a if on else b) / (b if on else a) - 1.0) for (on, a), (_, b) in pairwise(medians)
    ]
    return {
        "iteration_ms_with": 1e3 * median(t for on, t in medians if on),
        "iteration_ms_without": 1e3 * median(t for on, t in medians if not on),
        "cost_pct_median": median(pairs),
        "cost_pct_mean": fmean(pairs),
        "cost_pct_pairs": [round(one, 3) for one in pairs],
    }


def named(log: str) -> dict[str, Any]:
    """Lines about slow ranks against what was done to ranks."""
    said = re.findall(
        r"rank (\d) \(.*?\) is slow since iteration (\d+): (\S+ \S+) longer in (.*?) than its "
        r"peers, in an iteration of .*? \(seen in iteration (\d+)\)",
        log,
    )
    expected = {
        PAIRED + 1 + episode * EPISODE: sleeper(PAIRED + 1 + episode * EPISODE)
        for episode in range(EPISODES)
    }
    right, false = [], []
    for rank, since, excess, part, seen in said:
        # On a GPU the first slow iteration has the monitor look closely, from the next one on.
        planned = expected.get(int(since)) or expected.get(int(since) - 1)
        is_right = planned is not None and planned[0] == int(rank) and int(seen) <= int(since) + 2
        (right if is_right else false).append((int(rank), int(since), excess, part, int(seen)))
    return {"named": len(right), "of": EPISODES, "right": right, "other_lines": false}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--quick", action="store_true", help="small models")
    parser.add_argument("--cpu", action="store_true", help="no GPU, even if there is one")
    parser.add_argument("--seconds", type=float, default=86)
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    answers: dict[str, Any] = {}
    watch, skip = Launch("watch", options), None
    try:
        watch.until(lambda: (watch.folder / "begins.json").exists(), end - 24)
        skip = Launch("skip", options)
        watch.until(lambda: len(watch.records(LATE_AT)) == 4, end - 12)
        time.sleep(0.5)
        answers["late"] = watch.hang()
        watch.until(lambda: len(watch.records(STOP_AT)) == 3, end - 2)
        skip.until(lambda: len(skip.records(SKIPS_AT)) == 4, end - 2)
        time.sleep(1)
        answers["stopped"] = watch.hang()
        answers["skipped"] = skip.hang()
        answers["flight_records"] = len(watch.records(STOP_AT, ".flight.pickle"))
    finally:
        for launch in filter(None, (watch, skip)):
            launch.end()
        log = watch.log.read_text(errors="replace")
        answers["slow"] = named(log)
        if (watch.folder / "begins.json").exists():
            answers["cost"] = cost(watch.folder)
        (options.out / "watch.json").write_text(json.dumps(answers, indent=1))
        print(json.dumps(answers, indent=1))


if __name__ == "__main__":
    if ROLE in os.environ:
        train()
    else:
        main()
