# SPDX-License-Identifier: Apache-2.0
"""Short trainings for benchmarks of memory: one process a rank, each with its own allocator.

A process imports torch and Megatron, waits until it may begin (`Training.begin`), trains
`pretrain_gpt.py`, and leaves what torch's allocator itself counted, after every iteration:

    FOLDER/rank-0.log          what it printed
    FOLDER/rank-0.facts.json   losses, gradient norms, most in use and reserved of each iteration

Processes of one benchmark share GPUs, so times of iterations say nothing. How much of a GPU torch
may have is a limit (`torch.cuda.set_per_process_memory_fraction`): beyond it torch raises its own
out-of-memory error, by the same way as on a full GPU.
"""

from __future__ import annotations

import inspect
import json
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDER = "MEMORY_TRAINING"
BEGIN = "begin.json"
RANKS_PER_GPU = int(os.environ.get("RANKS_PER_GPU", "1"))
"""More than 1 where ranks share a GPU (ranks_per_gpu/sitecustomize.py)."""
LEAK = 8 << 20
"""Bytes that the fault `leak` keeps of each iteration."""


@dataclass(frozen=True)
class Model:
    """A GPT model."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int

    @property
    def flags(self) -> str:
        return (
            f"--num-layers {self.layers} --hidden-size {self.hidden} "
            f"--num-attention-heads {self.heads} --seq-length {self.sequence} "
            f"--max-position-embeddings {self.sequence} --vocab-size {self.vocabulary}"
        )


USUAL, TINY = Model(4, 1536, 12, 1024, 32_000), Model(4, 64, 4, 64, 256)


class Training:
    """One training that is started at once and begins when it may.

    Args:
        folder: where its files go; must not be there yet.
        flags: of Megatron and ours.
        gpus: one process each; None trains on the CPU.
        port: of its own.
        model: what is trained.
        environment: variables beyond those of this process.
        fault: `leak` keeps 8 MiB of each iteration; `history` keeps the allocator's history itself.
    """

    def __init__(
        self, folder: Path, flags: str, gpus: list[int | None], port: int, model: Model = USUAL,
        *, environment: Mapping[str, str] | None = None, fault: str = "",
    ) -> None:  # fmt: skip
        folder.mkdir(parents=True)
        self.folder = folder
        self.processes = [
            self._process(rank, gpu, len(gpus), flags, port, model, environment or {}, fault)
            for rank, gpu in enumerate(gpus)
        ]

    def _process(
        self, rank: int, gpu: int | None, world: int, flags: str, port: int, model: Model,
        environment: Mapping[str, str], fault: str,
    ) -> subprocess.Popen[bytes]:  # fmt: skip
        command = [
            sys.executable, __file__, *model.flags.split(), "--micro-batch-size", "1", "--lr",
            "1e-4", "--bf16", "--mock-data", "--tokenizer-type", "NullTokenizer", "--log-interval",
            "1", "--eval-interval", "1000", "--eval-iters", "0", "--transformer-impl", "local",
            "--num-workers", "0", *flags.split(),
        ]  # fmt: skip
        variables = {
            "CUDA_DEVICE_MAX_CONNECTIONS": "1",
            "PYTHONWARNINGS": "ignore",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "" if gpu is None else str(gpu // RANKS_PER_GPU),
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            FOLDER: str(self.folder),
            "MEMORY_FAULT": fault,
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
            **environment,
        }
        with (self.folder / f"rank-{rank}.log").open("w") as log:
            return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=variables)

    def begin(self, *flags: object, limit: int | None = None) -> None:
        """Let it begin.

        Args:
            flags: more of them.
            limit: bytes that torch may have of a GPU.
        """
        unfinished = self.folder / f"{BEGIN}.tmp"
        unfinished.write_text(json.dumps({"flags": [*map(str, flags)], "limit": limit}))
        unfinished.rename(self.folder / BEGIN)

    def end(self, deadline: float) -> str:
        """Wait until it ends, at most until `deadline` (`time.monotonic`).

        Returns:
            `trained`, `out of memory`, or what else happened.
        """
        while time.monotonic() < deadline:
            states = [one.poll() for one in self.processes]
            if any(states):
                self.stop()
                return "out of memory" if self.failed_for_memory else f"exit {states}"
            if None not in states:
                return "trained"
            time.sleep(0.1)
        self.stop()
        return "stopped: no time left"

    def stop(self) -> None:
        """End what runs still: a rank waits for another one that has died."""
        for one in self.processes:
            if one.poll() is None:
                one.kill()
                one.wait()

    @property
    def log(self) -> str:
        """What all ranks printed."""
        return "\n".join(
            path.read_text(errors="replace") for path in sorted(self.folder.glob("rank-*.log"))
        )

    @property
    def failed_for_memory(self) -> bool:
        return "OutOfMemoryError" in self.log

    @property
    def facts(self) -> list[dict[str, Any]]:
        """What each rank counted."""
        return [
            json.loads(path.read_text()) for path in sorted(self.folder.glob("rank-*.facts.json"))
        ]

    def wait_for(self, pattern: str, count: int, deadline: float) -> list[Path]:
        """So many files of its folder, or fewer if they do not come until the deadline."""
        found: list[Path] = []
        while time.monotonic() < deadline:
            found = sorted(self.folder.rglob(pattern))
            if len(found) >= count or any(one.poll() for one in self.processes):
                break
            time.sleep(0.1)
        return found

    def excerpt(self, characters: int = 700) -> str:
        """The end of what it printed, of the first rank that failed."""
        for rank, one in enumerate(self.processes):
            if one.poll():
                text = (self.folder / f"rank-{rank}.log").read_text(errors="replace")
                return text[-characters:]
        return self.log[-characters:]


def visible_gpus() -> int:
    """For how many ranks there are GPUs, counted without a context on any of them."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    except FileNotFoundError:
        return 0
    return len(listed.stdout.splitlines()) * RANKS_PER_GPU if listed.returncode == 0 else 0


def train() -> None:
    """In a process of training."""
    folder, rank = Path(os.environ[FOLDER]), os.environ["RANK"]
    import torch
    from megatron.training import training

    parent = os.getppid()
    while not (folder / BEGIN).is_file():
        if os.getppid() != parent:  # the benchmark has ended
            return
        time.sleep(0.05)
    begin = json.loads((folder / BEGIN).read_text())
    gpu = torch.cuda.is_available()
    if gpu and begin["limit"]:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(begin["limit"] / total)
    fault = os.environ["MEMORY_FAULT"]
    if gpu and fault == "history":
        torch.cuda.memory._record_memory_history(max_entries=50_000, stacks="python")
    iterations: list[dict[str, Any]] = []
    facts: dict[str, Any] = {"limit": begin["limit"], "iterations": iterations}
    path = folder / f"rank-{rank}.facts.json"
    step, log = training.train_step, training.training_log
    kept: list[Any] = []

    def keeps_one_more() -> None:
        kept.append(torch.empty(LEAK, dtype=torch.uint8, device="cuda" if gpu else "cpu"))

    def train_step(*args: Any, **kwargs: Any) -> Any:
        if gpu:
            torch.cuda.reset_peak_memory_stats()
        found = step(*args, **kwargs)
        if fault == "leak":
            keeps_one_more()
        counted = {}
        if gpu:
            counted = {
                "peak_bytes": torch.cuda.max_memory_allocated(),
                "reserved_bytes": torch.cuda.max_memory_reserved(),
                "in_use_bytes": torch.cuda.memory_allocated(),
                "history": torch._C._cuda_isHistoryEnabled(),
            }
        iterations.append(counted)
        path.write_text(json.dumps(facts))
        return found

    def training_log(loss_dict: Any, *args: Any, **kwargs: Any) -> Any:
        losses = [float(one).hex() for one in loss_dict.values()]
        if iterations:
            told = inspect.signature(log).bind_partial(loss_dict, *args, **kwargs).arguments
            norm = told.get("grad_norm")
            iterations[-1]["losses"] = losses
            iterations[-1]["gradient_norm"] = None if norm is None else float(norm).hex()
        return log(loss_dict, *args, **kwargs)

    training.train_step, training.training_log = train_step, training_log
    sys.argv = [str(REPOSITORY / "pretrain_gpt.py"), *sys.argv[1:], *begin["flags"]]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        path.write_text(json.dumps(facts))


if __name__ == "__main__":
    train()
