# SPDX-License-Identifier: Apache-2.0
"""What the log says before training of what the traces will lack, and why."""

from __future__ import annotations

import os
import sys
from typing import Any

from megatron.torch_profile.config import flag_of
from megatron.torch_profile.guard import Guard
from megatron.torch_profile.log import logger
from megatron.torch_profile.plan import slurm
from megatron.torch_profile.plan.capture_plan import CapturePlan
from megatron.torch_profile.record import python_stacks
from megatron.torch_profile.spans.modules import count_spans

_NO_MODEL = "this Megatron's train() does not take its model under the name that is known"


def of_the_run(capture: CapturePlan, args: Any) -> None:
    """What is the same for all ranks."""
    _of_signals(capture, args)
    if getattr(args, "timing_log_level", 0):
        logger.warning(
            "--timing-log-level %d: Megatron's timers synchronise the GPU at every start and "
            "stop, so the trace will show less overlap than training has; drop it (the trace "
            "names the same phases with --torch-profile-spans phases)",
            args.timing_log_level,
        )
    _of_stacks(capture)


def of_module_spans(capture: CapturePlan, model: Any) -> None:
    """How many modules get spans, and a warning where none does; on every rank."""
    rank, depth = capture.topology.rank, capture.config.spans_depth
    count: Any = None
    if model is not None:
        count = Guard("counts of module spans")(count_spans, model, depth)
    if count and count.named:
        if rank == 0:
            logger.info("spans of modules: %s", count)
    elif rank == 0 or capture.records_here:
        logger.warning(
            "rank %d: no module gets a span: %s", rank, count.why_none if count else _NO_MODEL
        )


def _of_signals(capture: CapturePlan, args: Any) -> None:
    world_size = capture.topology.layout.world_size
    for trouble in (
        slurm.undeliverable_signal(os.environ, slurm.batch_script(os.environ)),
        slurm.ranks_end_apart(os.environ, args, world_size),
    ):
        if trouble:
            logger.warning("%s", trouble)


def _of_stacks(capture: CapturePlan) -> None:
    import torch

    trouble = python_stacks.trouble(sys.version_info[:3], torch.__version__)
    if capture.config.with_stack and trouble:
        logger.warning("%s: %s", flag_of("with_stack"), trouble)
