# SPDX-License-Identifier: Apache-2.0
"""One launch of the long run: started, watched, ended in the iteration that the plan names."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from long_run_plan import GLOBAL_BATCH, KILL, LAYERS, RANKS, Plan
from long_run_processes import MARK, descendants, kill, of_launch, sample, wait_for_all
from long_run_rank import FOLDER, PLAN, REPOSITORY

_RANK = Path(__file__).with_name("long_run_rank.py")
_LOOK_SECONDS = 0.5
_LEFT_SECONDS = 120.0


def of_training(plan: Plan, checkpoints: Path) -> list[str]:
    """Megatron's flags."""
    return [
        "--num-layers", str(LAYERS), "--hidden-size", "64", "--num-attention-heads", "4",
        "--seq-length", "64", "--max-position-embeddings", "64", "--micro-batch-size", "1",
        "--global-batch-size", str(GLOBAL_BATCH), "--train-iters", str(plan.iterations),
        "--lr", "1e-3", "--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size", "255",
        "--attention-dropout", "0.1", "--hidden-dropout", "0.1", "--seed", "1234",
        "--num-workers", "1", "--log-interval", "1", "--transformer-impl", "local",
        "--ckpt-format", "torch", "--eval-interval", str(plan.evaluate), "--eval-iters", "2",
        "--save", str(checkpoints), "--load", str(checkpoints), "--save-interval", str(plan.save),
    ]  # fmt: skip


def of_profiling(plan: Plan, traces: Path) -> list[str]:
    """Everything that can be on in one run on the CPU."""
    return [
        "--torch-profile", "--torch-profile-dir", str(traces), "--torch-profile-ranks", "all",
        "--torch-profile-skip-first", "3", "--torch-profile-frequency", str(plan.cycle),
        "--torch-profile-repeat", "0", "--torch-profile-spans", "phases", "modules",
        "--torch-profile-monitor", "--torch-profile-monitor-interval", str(min(50, plan.cycle)),
        "--torch-profile-trigger", "file", "signal", "slow-iteration",
        "--torch-profile-trigger-factor", "2", "--torch-profile-trigger-ranks", "slowest",
        "--torch-profile-trigger-windows", "10", "--torch-profile-trigger-apart", str(plan.apart),
        "--torch-profile-summary", "always", "--torch-profile-on-hang", "300",
        "--log-timers-to-tensorboard", "--tensorboard-dir", str(traces.with_name("tensorboard")),
    ]  # fmt: skip


class Launch:
    """Of the training, with or without profiling.

    Args:
        folder: of this launch, new.
        flags: of the training.
        plan: file with it, where faults are injected.
        tell: called with lines for the terminal.
    """

    def __init__(
        self, folder: Path, flags: list[str], plan: Path | None, tell: Callable[[str], None]
    ) -> None:
        self.folder, self._tell = folder, tell
        folder.mkdir(parents=True)
        (folder / "tmp").mkdir()
        environment = {
            "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1", **os.environ,
            "CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(folder / "tmp"), MARK: str(folder),
            FOLDER: str(folder),
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
        }  # fmt: skip
        if plan is not None:
            environment[PLAN] = str(plan)
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        self.log_file = folder / "train.log"
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, *torchrun, str(_RANK), *flags],
                stdout=log, stderr=subprocess.STDOUT, env=environment,
            )  # fmt: skip
        self.left: list[str] = []
        self.seconds_to_end = 0.0
        self._told = time.monotonic()

    @property
    def log(self) -> str:
        """What it has said by now."""
        return self.log_file.read_text(errors="replace")

    @property
    def runs(self) -> list[Path]:
        """Folders of runs that its log names, in order."""
        found = re.findall(r"\[torch-profile plan\] traces: (\S+)", self.log)
        return [Path(one) for one in found]

    def iteration(self, rank: int = 0) -> int:
        """The last one that has ended."""
        try:
            with (self.folder / f"rank-{rank}.iterations").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 400))
                lines = file.read().splitlines()
        except OSError:
            return 0
        return int(lines[-1].split()[0]) if lines else 0

    def pid(self, rank: int) -> int | None:
        """Of a rank; None before it runs."""
        try:
            return int((self.folder / f"rank-{rank}.pid").read_text())
        except (OSError, ValueError):
            return None

    def watch(
        self, until: tuple[int, str] | None, acts: dict[int, Callable[[Launch], None]]
    ) -> int:
        """Until it ends, by itself or in the iteration in which it is ended; its status.

        Args:
            until: iteration in which it is ended, and how.
            acts: what is done when an iteration has ended; what is done is taken out.
        """
        with (self.folder / "samples.jsonl").open("a") as file:
            while self._process.poll() is None:
                time.sleep(_LOOK_SECONDS)
                now = self.iteration()
                for rank in range(RANKS):
                    pid = self.pid(rank)
                    seen = sample(rank, pid, self.iteration(rank)) if pid else None
                    if seen is not None:
                        file.write(json.dumps(asdict(seen)) + "\n")
                for at in [one for one in acts if now >= one]:
                    acts.pop(at)(self)
                if until is not None and now >= until[0]:
                    self._end(until[1])
                    break
                self._progress(now)
        status = self._process.wait()
        self.seconds_to_end, self.left = wait_for_all(str(self.folder), _LEFT_SECONDS)
        return status

    def _end(self, how: str) -> None:
        self._tell(f"iteration {self.iteration()}: {how}")
        if how == KILL:
            below = [pid for rank in range(RANKS) for pid in [self.pid(rank)] if pid]
            # Processes that write traces are left alive, as they may outlive a rank.
            kill([self._process.pid, *below])
        else:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """All that is there of it."""
        kill([self._process.pid, *descendants(self._process.pid)])
        kill([pid for pid, _ in of_launch(str(self.folder))])
        self._process.wait()

    def _progress(self, now: int) -> None:
        if time.monotonic() - self._told < 30.0:
            return
        self._told = time.monotonic()
        memory = []
        for rank in range(RANKS):
            pid = self.pid(rank)
            seen = sample(rank, pid, 0) if pid else None
            memory.append("?" if seen is None else f"{seen.resident / 1e6:.0f} MB")
        said = len(re.findall(r"^\[torch-profile [a-z-]+\] warning", self.log, re.MULTILINE))
        done = sum(len([*run.glob("iter-*/rank-0.pt.trace.json.gz")]) for run in self.runs)
        self._tell(
            f"{self.folder.name}: iteration {now}, resident {' and '.join(memory)}, "
            f"{done} windows, {said} warnings"
        )
