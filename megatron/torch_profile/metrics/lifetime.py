# SPDX-License-Identifier: Apache-2.0
"""The metrics of the training that runs now: begun and ended around Megatron's `train`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from megatron.torch_profile.followers import followers
from megatron.torch_profile.log import Slug, warn
from megatron.torch_profile.metrics import across_ranks, data_iterators, telemetry
from megatron.torch_profile.metrics.iteration_memory import IterationMemory
from megatron.torch_profile.metrics.nvml import Gpu
from megatron.torch_profile.metrics.run_metrics import Metrics
from megatron.torch_profile.metrics_config import MetricsConfig
from megatron.torch_profile.plan.capture_plan import CapturePlan
from megatron.torch_profile.publish import sinks


@contextmanager
def training(
    config: MetricsConfig,
    args: Any,
    capture: CapturePlan | None,
    count_flops: Callable[[], float | None],
) -> Iterator[None]:
    """Around one call of `train`, on every rank.

    Args:
        config: what the user asked for; something.
        args: Megatron's arguments.
        capture: what is recorded, if anything.
        count_flops: Megatron's formula for one iteration, None if unknown.
    """
    try:
        followers.metrics = _make(config, args, capture, count_flops)
        followers.metrics.start()
    except Exception as error:
        # The same on every rank, since it is installed so: nobody waits for this one.
        warn(
            Slug.METRICS_FAILED,
            "training goes on without metrics: %s: %s",
            type(error).__name__,
            error,
        )
    try:
        yield
    finally:
        metrics, followers.metrics = followers.metrics, None
        if metrics is not None:
            metrics.stop()


def with_timed_data(train: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Arguments for `train` that tell how long it waits for data, where nothing else does."""
    try:
        if followers.metrics is not None:
            return data_iterators.with_timed_data(train, args, kwargs, followers.metrics.next_batch)
    except Exception as error:
        warn(
            Slug.DATA_WAIT_UNKNOWN,
            "the wait for data is unknown: %s: %s",
            type(error).__name__,
            error,
        )
    return args, kwargs


def _make(
    config: MetricsConfig,
    args: Any,
    capture: CapturePlan | None,
    count_flops: Callable[[], float | None],
) -> Metrics:
    rank, gpus = across_ranks.rank_and_gpus()
    outputs: list[sinks.Sink] = [
        sinks.Wandb(sinks.megatrons("wandb")),
        sinks.TensorBoard(sinks.megatrons("tensorboard")),
    ]
    if rank == 0 and capture is not None:
        outputs.append(sinks.JsonLines(capture.run_folder / sinks.METRICS_FILE))
    return Metrics(
        config,
        args,
        sinks.Sinks(outputs),
        rank=rank,
        gpus=gpus,
        windows=capture.schedule if capture else (),
        count_flops=count_flops,
        peak_tflops=_peak_tflops(),
        sampler=_sampler(config, rank),
        memory=(
            IterationMemory.of_this_process(rank) if config.log_memory_every_iteration else None
        ),
    )


def _peak_tflops() -> float | None:
    import torch

    try:
        from megatron.torch_trace.analysis.gpu_work.mfu import dense_peak_tflops

        if not torch.cuda.is_available():
            return None
        return dense_peak_tflops(torch.cuda.get_device_name())
    except Exception:
        # No rank may miss its start, or the others wait for it.
        return None


def _sampler(config: MetricsConfig, rank: int) -> telemetry.Sampler | None:
    if config.log_gpu_stats_interval is None:
        return None
    try:
        import pynvml

        sampler = telemetry.Sampler(Gpu.of_this_process(pynvml).read, config.log_gpu_stats_interval)
        sampler.start()
    except Exception as error:
        if rank == 0:
            warn(
                Slug.TELEMETRY_FAILED,
                "training goes on without GPU telemetry: %s: %s",
                type(error).__name__,
                error,
            )
        return None
    return sampler
