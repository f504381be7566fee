# SPDX-License-Identifier: Apache-2.0
"""The metrics of the training that runs now: begun and ended around Megatron's `train`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from megatron.torch_profile import across_ranks, sinks, telemetry
from megatron.torch_profile.config import MetricsConfig
from megatron.torch_profile.log import logger
from megatron.torch_profile.nvml import Gpu
from megatron.torch_profile.run_metrics import Metrics
from megatron.torch_profile.schedule import Window

current: Metrics | None = None
"""Of the training that runs now; None where nobody asked."""


def start(
    config: MetricsConfig,
    args: Any,
    *,
    run_folder: Path | None,
    windows: Iterable[Window],
    count_flops: Callable[[], float | None],
) -> Metrics:
    """Begin, right before Megatron's `train`, on every rank.

    Args:
        config: what the user asked for; something.
        args: Megatron's arguments.
        run_folder: of the profiled run, if there is one.
        windows: what it will record.
        count_flops: Megatron's formula for one iteration, None if unknown.
    """
    global current
    rank, gpus = across_ranks.place()
    outputs: list[sinks.Sink] = [
        sinks.Wandb(lambda: _writer("get_wandb_writer")),
        sinks.TensorBoard(lambda: _writer("get_tensorboard_writer")),
    ]
    if rank == 0 and run_folder is not None:
        outputs.append(sinks.JsonLines(run_folder / sinks.METRICS_FILE))
    current = Metrics(
        config,
        args,
        sinks.Sinks(outputs),
        rank=rank,
        gpus=gpus,
        windows=windows,
        count_flops=count_flops,
        peak_tflops=_peak_tflops(),
        sampler=_sampler(config, rank),
    )
    return current


def stop(metrics: Metrics) -> None:
    """End, after `train`, however it ended."""
    global current
    current = None
    metrics.stop()


def _peak_tflops() -> float | None:
    import torch

    try:
        from megatron.torch_trace.analysis.mfu import dense_peak_tflops

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
            logger.warning("no GPU telemetry: %s: %s", type(error).__name__, error)
        return None
    return sampler


def _writer(name: str) -> Any:
    from megatron.training import global_vars

    return getattr(global_vars, name)()
