# SPDX-License-Identifier: Apache-2.0
"""What the user's log says, and metrics on a Megatron whose clock the test moves."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import logging_megatron
import pytest
from gates import MINUTES, Gate
from logging_megatron import Arguments, Follow, Loop, Timers, Writer

from megatron.torch_profile.export import disk, writers
from megatron.torch_profile.followers import followers
from megatron.torch_profile.hooks.megatron_names import PATCHES
from megatron.torch_profile.log import logger
from megatron.torch_profile.metrics.run_metrics import Metrics
from megatron.torch_profile.metrics.step_times import StepClock
from megatron.torch_profile.metrics_config import MetricsConfig
from megatron.torch_profile.patching import PatchSet
from megatron.torch_profile.publish import sinks


@pytest.fixture(autouse=True)
def patience() -> Iterator[None]:
    """A busy machine is neither a file system that hangs nor a process that cannot be killed."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(disk, "_ANSWER_SECONDS", MINUTES)
        patched.setattr(writers, "_REAP_SECONDS", MINUTES)
        yield


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Opened in the end, so that nobody waits there behind a test that has failed."""
    shut = Gate()
    yield shut
    shut.open()


@pytest.fixture(scope="module", autouse=True)
def nothing_imported_earlier_is_looked_at() -> None:
    """A recorder goes through all objects as it begins: a test of compilers leaves a million."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Follow]:
    """Run a loop under metrics with both writers and `tmp_path/metrics.jsonl`; returns it."""
    monkeypatch.setattr(logging_megatron, "now", 0.0)
    patches = PatchSet(
        tuple(
            replace(patch, module="logging_megatron")
            for patch in PATCHES
            if patch.name not in ("train", "_add_logging_args", "finish")
        )
    )

    def run(
        train_iters: int,
        log_interval: int,
        *,
        generation: str = "0.16",
        iteration: int = 0,
        ranks: int = 1,
        config: MetricsConfig | None = None,
        timer_seconds: Callable[[int], list[float]] = lambda iteration: [1.0],
        outputs: list[sinks.Sink] | None = None,
        loop_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> Loop:
        args = Arguments(train_iters, log_interval, iteration, 4 * iteration)
        loop = Loop(args, generation, Timers(ranks), Writer(), **(loop_options or {}))
        seconds = loop.model_seconds

        def timed(iteration: int) -> float:
            loop.timers.add("forward-backward", *timer_seconds(iteration))
            return seconds(iteration)

        loop.model_seconds = timed
        options.setdefault("clock", StepClock(logging_megatron.clock))
        followed = Metrics(
            config or MetricsConfig(log_timers_to_wandb=True),
            args,
            sinks.Sinks(
                outputs
                if outputs is not None
                else [
                    sinks.Wandb(lambda: loop.writer),
                    sinks.TensorBoard(lambda: loop.writer),
                    sinks.JsonLines(tmp_path / sinks.METRICS_FILE),
                ]
            ),
            **options,
        )
        monkeypatch.setattr(followers, "metrics", followed)
        followed.start()
        try:
            loop.run()
        finally:
            followed.stop()
        return loop

    patches.apply()
    yield run
    patches.remove()


@contextmanager
def lines(level: int) -> Iterator[list[str]]:
    """Lines of the user's log from a level on, as they come."""
    found: list[str] = []
    handler = logging.Handler(level)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)


@pytest.fixture
def said() -> Iterator[list[str]]:
    """Everything the user's log says."""
    with lines(logging.INFO) as found:
        yield found


@pytest.fixture
def warned() -> Iterator[list[str]]:
    """Warnings in the user's log."""
    with lines(logging.WARNING) as found:
        yield found
