# SPDX-License-Identifier: Apache-2.0
"""Whether the rank that makes a job hang is named right: 20 hangs, one after the other.

    python benchmarks/hangs.py OUT            2 GPUs with NCCL, below 100 s
    python benchmarks/hangs.py OUT --cpu      over gloo

A rank is stopped (SIGSTOP), skips a collective, calls one with another size, or waits in a module:
each time another layer, micro-batch and rank. The first four launches are `pretrain_gpt.py`
(`--megatron 4`), the others a process group and modules of torch's own (hanging_rank.py). All
processes start at once and wait for their turn. Lines are printed as they come, and OUT/hangs.json
has all.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hanging_rank import CASE, HOW, LAYERS, REPOSITORY, Case

TRAINING = Path(__file__).with_name("hanging_rank.py")
MEGATRON_SECONDS = 6.0


def of_megatron(folder: Path) -> list[str]:
    """Arguments of `pretrain_gpt.py`."""
    return [
        "--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "4",
        "--seq-length", "64", "--max-position-embeddings", "64", "--micro-batch-size", "1",
        "--global-batch-size", "4", "--tensor-model-parallel-size", "2", "--vocab-size", "256",
        "--train-iters", "50", "--lr", "1e-4", "--bf16", "--mock-data", "--tokenizer-type",
        "NullTokenizer", "--log-interval", "1", "--eval-interval", "1000", "--eval-iters", "0",
        "--transformer-impl", "local", "--torch-profile", "--torch-profile-iterations", "40",
        "--torch-profile-dir", str(folder), "--torch-profile-on-hang", str(MEGATRON_SECONDS),
    ]  # fmt: skip


@dataclass
class Launch:
    """The ranks of one case."""

    case: Case
    folder: Path
    ranks: int
    arguments: list[str] = field(default_factory=list)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *, cpu: bool) -> None:
        self.folder.mkdir(parents=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with (self.folder / "log").open("wb") as log:
            for rank in range(self.ranks):
                environment = {
                    "PYTHONWARNINGS": "ignore", "CUDA_DEVICE_MAX_CONNECTIONS": "1",
                    "TORCH_FR_BUFFER_SIZE": "2000", "OMP_NUM_THREADS": "1", **os.environ,
                    "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self.ranks),
                    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                    "HANGS_FOLDER": str(self.folder), CASE: json.dumps(vars(self.case)),
                    "PYTHONPATH": f"{REPOSITORY}:{os.environ.get('PYTHONPATH', '')}",
                }  # fmt: skip
                if cpu:
                    environment["CUDA_VISIBLE_DEVICES"] = ""
                command = [sys.executable, str(TRAINING), *self.arguments]
                self.processes.append(
                    subprocess.Popen(command, stdout=log, stderr=log, env=environment)
                )

    @property
    def ready(self) -> bool:
        return len([*self.folder.glob("ready-*")]) == self.ranks

    @property
    def complete(self) -> bool:
        """Whether all ranks that can have left their record."""
        left = len([*self.folder.rglob("*.hang.json")])
        flights = len([*self.folder.rglob("*.flight.pickle")])
        wanted = self.ranks - (self.case.how == "stop")
        return left >= wanted and flights >= wanted

    @property
    def ended(self) -> bool:
        return any(one.poll() is not None for one in self.processes)

    def answer(self) -> dict[str, Any]:
        from megatron import torch_trace

        runs = [path.parent for path in self.folder.rglob("hangs")]
        found: dict[str, Any] = {**vars(self.case), "megatron": bool(self.arguments)}
        try:
            answer = torch_trace.hang(runs[0])
        except Exception as error:
            log = (self.folder / "log").read_text(errors="replace").strip()
            why = f"{type(error).__name__}: {error}; {log[-300:]}"
            return found | {"right": False, "verdict": why}
        found |= {"right": answer.culprits == (self.case.rank,), "verdict": answer.verdict}
        records = [json.loads(file.read_text()) for file in runs[0].glob("hangs/*.hang.json")]
        mine = [one for one in records if one["rank"] == self.case.rank]
        if self.case.how == "wait" and mine:
            modules = " ".join(mine[0]["modules"])
            found["module_right"] = f"layers.{self.case.layer}" in modules
            if self.arguments:
                found["micro_batch_right"] = mine[0]["micro_batch"] == self.case.micro_batch
        return found

    def end(self) -> None:
        for one in self.processes:
            one.kill()
        for one in self.processes:
            one.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--cpu", action="store_true", help="no GPU, even if there is one")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--hangs", type=int, default=20, help="how many [default: %(default)s]")
    parser.add_argument("--megatron", type=int, default=4, help="so many of them with Megatron")
    parser.add_argument("--together", type=int, default=4, help="hang at the same time")
    parser.add_argument("--seconds", type=float, default=98)
    options = parser.parse_args()
    if options.out.exists():
        parser.error(f"{options.out}: exists; name a folder that does not")
    began, end = time.monotonic(), time.monotonic() + options.seconds
    # Gloo ends with an error where sizes differ.
    hows = [how for how in HOW if not (options.cpu and how == "size")]
    launches: list[Launch] = []
    for number in range(options.hangs):
        mine = number < options.megatron
        how = hows[number % len(hows)]
        # Megatron's first MLP of a forward has number 1; its first reduction is taken.
        case = Case(how, number % options.ranks, 0 if mine else number % LAYERS, number % 3 + 1)
        folder = options.out / f"{number:02d}-{how}"
        launches.append(Launch(case, folder, options.ranks, of_megatron(folder) if mine else []))
    waiting, running = [*launches], []
    answers: list[dict[str, Any]] = []
    begun: dict[int, float] = {}
    try:
        for one in launches:
            one.start(cpu=options.cpu)
        while (waiting or running) and time.monotonic() < end:
            for one in [*waiting]:
                if one.arguments or (
                    one.ready and sum(not r.arguments for r in running) < options.together
                ):
                    waiting.remove(one)
                    running.append(one)
                    begun[id(one)] = time.monotonic()
                    (one.folder / "go").touch()
            for one in [*running]:
                late = time.monotonic() - begun[id(one)] > (
                    300 if options.cpu else 90 if one.arguments else 25
                )
                if one.complete or one.ended or late:
                    time.sleep(0.2)
                    answers.append(one.answer())
                    running.remove(one)
                    one.end()
                    print(f"{time.monotonic() - began:5.1f} s", json.dumps(answers[-1]), flush=True)
            time.sleep(0.1)
    finally:
        for one in launches:
            one.end()
        by_how = {
            how: f"{sum(a['right'] for a in answers if a['how'] == how)} of "
            f"{sum(a['how'] == how for a in answers)}"
            for how in HOW
        }
        total = {
            "right": sum(one["right"] for one in answers), "of": options.hangs,
            "answered": len(answers), "by_how": by_how,
            "module_right": sum(one.get("module_right", False) for one in answers),
            "module_of": sum("module_right" in one for one in answers),
            "micro_batch_right": sum(one.get("micro_batch_right", False) for one in answers),
            "micro_batch_of": sum("micro_batch_right" in one for one in answers),
        }  # fmt: skip
        print(json.dumps(total))
        (options.out / "hangs.json").write_text(
            json.dumps({"total": total, "hangs": answers}, indent=1)
        )


if __name__ == "__main__":
    main()
