# SPDX-License-Identifier: Apache-2.0
"""Megatron's loop, timers and log as three generations of it behave, on a clock that tests move.

0.14   timers.write every iteration, divided by the iterations since the last log, resetting
0.15   timers.write where it logs, divided by the log interval, not resetting
0.16   as 0.15, and the first iteration of a process is logged without resetting
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

now = 0.0
"""Seconds."""


def clock() -> float:
    return now


def work(seconds: float) -> None:
    global now
    now += seconds


class Timers:
    """Each rank's elapsed seconds; a test adds to them."""

    def __init__(self, ranks: int) -> None:
        self.elapsed: list[dict[str, float]] = [{} for _ in range(ranks)]
        self.printed: list[dict[str, tuple[float, float]]] = []

    def add(self, name: str, *seconds: float) -> None:
        for rank, value in enumerate(seconds):
            self.elapsed[rank][name] = self.elapsed[rank].get(name, 0.0) + value

    def _get_elapsed_time_all_ranks(self, names: Any, reset: bool, barrier: bool) -> Any:
        rows = [[rank.get(name, 0.0) for name in names] for rank in self.elapsed]
        if reset:
            for rank in self.elapsed:
                for name in names:
                    rank.pop(name, None)
        return torch.tensor(rows, dtype=torch.float64) if names else None

    def _extremes(self, names: Any, reset: bool, normalizer: float) -> dict[str, Any]:
        rows = self._get_elapsed_time_all_ranks(names, reset, False)
        columns = zip(names, rows.T.tolist(), strict=True) if rows is not None else ()
        ran = {name: [value for value in column if value > 0] for name, column in columns}
        return {
            name: (min(values) / normalizer, max(values) / normalizer)
            for name, values in ran.items()
            if values
        }

    def log(
        self,
        names: list[str],
        rank: int | None = None,
        normalizer: float = 1.0,
        reset: bool = True,
        barrier: bool = False,
    ) -> None:
        self.printed.append(self._extremes(names, reset, normalizer))

    def write(
        self,
        names: list[str],
        writer: Any,
        iteration: int,
        normalizer: float = 1.0,
        reset: bool = True,
        barrier: bool = False,
    ) -> None:
        for name, (_, largest) in self._extremes(names, reset, normalizer).items():
            writer.add_scalar(f"{name}-time", largest, iteration)


class RerunDataIterator:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __next__(self) -> str:
        work(self.seconds)
        return "batch"


@dataclass
class Writer:
    """A SummaryWriter, or the wandb module."""

    scalars: dict[str, dict[int, float]] = field(default_factory=dict)
    logged: list[tuple[int, dict[str, float]]] = field(default_factory=list)

    def add_scalar(self, key: str, value: float, iteration: int) -> None:
        self.scalars.setdefault(key, {})[iteration] = value

    def log(self, values: dict[str, float], step: int) -> None:
        self.logged.append((step, values))


@dataclass
class Arguments:
    """The part of Megatron's that matters here."""

    train_iters: int
    log_interval: int
    iteration: int = 0
    consumed_train_samples: int = 0
    seq_length: int = 100


@dataclass
class Loop:
    """One call of `train`."""

    args: Arguments
    generation: str
    timers: Timers
    writer: Writer
    batch_size: int = 4
    data_seconds: float = 0.25
    model_seconds: Callable[[int], float] = lambda iteration: 1.0
    names: tuple[str, ...] = ("forward-backward",)
    eval_interval: int = 0
    lines: list[str] = field(default_factory=list)
    since_log: int = 0

    def run(self) -> None:
        data = RerunDataIterator(self.data_seconds)
        first = True
        for iteration in range(self.args.iteration + 1, self.args.train_iters + 1):
            train_step(self, data, iteration)
            self.args.consumed_train_samples += self.batch_size
            is_first = {"is_first_iteration": first} if self.generation == "0.16" else {}
            training_log(self, iteration=iteration, **is_first)
            first = False
            if self.eval_interval and iteration % self.eval_interval == 0:
                evaluate_and_print_results(self, data)


def train_step(loop: Loop, data: RerunDataIterator, iteration: int) -> None:
    next(data)
    work(loop.model_seconds(iteration))


def evaluate_and_print_results(loop: Loop, data: RerunDataIterator) -> None:
    next(data)
    work(1000.0)
    loop.timers.add("evaluate", 1000.0)
    loop.timers.log(["evaluate"])


def save_checkpoint_and_time(loop: Loop) -> None:
    work(500.0)


def print_rank_last(message: str, lines: list[str]) -> None:
    lines.append(message)


def training_log(loop: Loop, iteration: int, is_first_iteration: bool = False) -> None:
    args, names = loop.args, list(loop.names)
    loop.since_log += 1
    if loop.generation == "0.14":
        loop.timers.write(names, loop.writer, iteration, normalizer=loop.since_log)
    if iteration % args.log_interval == 0 or is_first_iteration:
        print_rank_last(f" iteration {iteration:8d} | loss |", loop.lines)
        if loop.generation != "0.14":
            loop.timers.write(
                names, loop.writer, iteration, normalizer=args.log_interval, reset=False
            )
        loop.timers.log(names, normalizer=args.log_interval, reset=not is_first_iteration)
        if not is_first_iteration:
            loop.since_log = 0


Follow = Callable[..., Loop]
"""What the fixture `follow` gives: runs a loop under metrics and returns it."""
