# SPDX-License-Identifier: Apache-2.0
"""Flags about numbers of the whole run: one field is one flag, its default and its help."""

from __future__ import annotations

from dataclasses import dataclass

from megatron.torch_profile.config import flag


@dataclass(frozen=True, kw_only=True)
class MetricsConfig:
    """Flags about numbers of the whole run, which need no `--torch-profile`.

    A field is a flag and an argument of the same name. What the installed Megatron defines itself
    stays Megatron's, and is only read here.
    """

    log_timers_to_wandb: bool = flag(
        False,
        "Log timers (timers/<name>-time) and the split of the step time per log interval to the "
        "W&B run, to TensorBoard and to the profile's metrics.jsonl, those that exist.",
    )
    log_timers_to_tensorboard: bool = flag(False, "The same as --log-timers-to-wandb.")
    log_gpu_stats_interval: float | None = flag(
        None,
        "Read every GPU through NVML every SECONDS, and log utilisation, power, clocks, "
        "temperature and memory per log interval.",
        metavar="SECONDS",
    )
    log_memory_interval: int | None = flag(
        None,
        "Log allocated, reserved and peak GPU memory of all ranks every N iterations; a multiple "
        "of --log-interval.",
        metavar="N",
    )
    log_memory_every_iteration: bool = flag(
        False,
        "Log allocated, reserved and peak GPU memory, and what NVML says is used, after every "
        "iteration, of the ranks that log (rank 0 and the last one).",
    )

    @property
    def timers(self) -> bool:
        """Whether timers and the split of the step time are logged."""
        return self.log_timers_to_wandb or self.log_timers_to_tensorboard

    @property
    def wanted(self) -> bool:
        """Whether anything is."""
        return self.timers or bool(
            self.log_gpu_stats_interval
            or self.log_memory_interval
            or self.log_memory_every_iteration
        )

    def memory_at(self, iteration: int) -> bool:
        """Whether memory is logged at this (logged) iteration."""
        if self.log_memory_interval:
            return iteration % self.log_memory_interval == 0
        return self.log_gpu_stats_interval is not None
