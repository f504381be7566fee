# SPDX-License-Identifier: Apache-2.0
"""What the log says before training of what the traces will lack, and why."""

from __future__ import annotations

import os
import sys
from typing import Any

from megatron.torch_profile.config import flag_of
from megatron.torch_profile.guard import Guard
from megatron.torch_profile.log import Slug, say, warn
from megatron.torch_profile.plan import slurm
from megatron.torch_profile.plan.capture_plan import CapturePlan
from megatron.torch_profile.plan.training_loop import MEGATRONS_OWN, TrainingLoop
from megatron.torch_profile.record import python_stacks
from megatron.torch_profile.spans.model_parts import count_spans

_BLOCKING = "CUDA_LAUNCH_BLOCKING"
_NO_MODEL = "this Megatron's train() does not take its model as an argument named model"
_NOT_GIVEN = "attach() was not given the model; write attach(model)"


def of_the_run(capture: CapturePlan, args: Any) -> None:
    """What is the same for all ranks."""
    _of_signals(capture, args)
    if getattr(args, "timing_log_level", 0):
        warn(
            Slug.TIMERS_SYNCHRONISE,
            "--timing-log-level %d: Megatron's timers synchronise the GPU at every start and "
            "stop, so the trace will show less overlap than training has without them; leave the "
            "flag out (--torch-profile-spans phases names the same phases in the trace)",
            args.timing_log_level,
        )
    if os.environ.get(_BLOCKING, "0") not in ("", "0"):
        warn(
            Slug.LAUNCHES_BLOCK,
            "%s=%s, which is for debugging, makes every launch wait until its work has ended, so "
            "the iterations will be slower than without it, and the trace will show no launch "
            "ahead of the GPU; unset it in the launch script",
            _BLOCKING,
            os.environ[_BLOCKING],
        )
    _of_stacks(capture)


def of_module_spans(capture: CapturePlan, model: Any, loop: TrainingLoop = MEGATRONS_OWN) -> None:
    """How many modules get spans, and a warning where none does; on every rank."""
    rank, depth = capture.topology.rank, capture.config.spans_depth
    count: Any = None
    if model is not None:
        count = Guard(Slug.SPANS_FAILED, "modules with spans are not counted")(
            count_spans, model, depth
        )
    if count and count.named:
        if rank == 0:
            say(Slug.MODULE_SPANS, "spans of modules: %s", count)
    elif rank == 0 or capture.records_here:
        warn(
            Slug.NO_MODULE_SPANS,
            "rank %d: no module gets a span: %s",
            rank,
            count.why_none if count else _NO_MODEL if loop is MEGATRONS_OWN else _NOT_GIVEN,
        )


def _of_signals(capture: CapturePlan, args: Any) -> None:
    world_size = capture.topology.layout.world_size
    for slug, trouble in (
        (
            Slug.SIGNAL_UNDELIVERABLE,
            slurm.undeliverable_signal(os.environ, slurm.batch_script(os.environ)),
        ),
        (Slug.RANKS_END_APART, slurm.ranks_end_apart(os.environ, args, world_size)),
    ):
        if trouble:
            warn(slug, "%s", trouble)


def _of_stacks(capture: CapturePlan) -> None:
    import torch

    trouble = python_stacks.trouble(sys.version_info[:3], torch.__version__)
    if capture.config.with_stack and trouble:
        warn(Slug.STACKS, "%s: %s", flag_of("with_stack"), trouble)
