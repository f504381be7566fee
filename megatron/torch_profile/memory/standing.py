# SPDX-License-Identifier: Apache-2.0
"""Where training stands at this moment: its phase and the module that runs, told by its threads.

Read from the Python frames of the thread that asks and of the main thread. Nothing is kept while
training runs, so it costs nothing until somebody asks.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from megatron.torch_profile.plan.training_loop import named_chunks

_PHASES = {
    "forward_step": "forward",
    "backward_step": "backward",
    "finalize_model_grads": "gradient reduction",
    "start_grad_sync": "gradient reduction",
    "finish_grad_sync": "gradient reduction",
    "evaluate": "evaluation",
    "save_checkpoint": "checkpoint",
    "save_checkpoint_and_time": "checkpoint",
    "training_log": "logging",
    "setup_model_and_optimizer": "set-up",
}
"""Megatron's functions, of all versions, and torch's."""
_OPTIMIZER = "optimizer step"
WRAPPERS = re.compile(r"^(module(\.|$))+")
"""At the begin of a path: DDP and Float16Module wrap the model in modules of their own."""
_MICROBATCH = "current_microbatch"
"""An argument of Megatron's `forward_step`."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where training stands.

    Args:
        phase: such as "forward micro-batch 3", "optimizer step"; empty where unknown.
        module: path and class of the innermost module that runs; empty where unknown.
        stack: Python frames `file:line function` of the thread that asks, the innermost first.
    """

    phase: str
    module: str
    stack: tuple[str, ...]


def standing(model: Any, *, without: int = 1) -> Standing:
    """Where training stands.

    Args:
        model: `Models` or a list of model chunks, for the names of modules.
        without: frames of the caller's own, which are no part of training.
    """
    here: FrameType | None = sys._getframe(without)
    mine = list(_frames(here))
    frames = list(mine)
    main = threading.main_thread().ident
    if main != threading.get_ident():  # autograd's thread, which has no Python of its own
        frames += _frames(sys._current_frames().get(main or 0))
    names = _names(model)
    phases = list(filter(None, map(_phase, frames)))
    phase = phases[0] if phases else ""
    # The user's own forward_step is called by Megatron's, which knows the micro-batch.
    phase = next((one for one in phases if one.startswith(f"{phase} ")), phase)
    module = next(filter(None, (_module(frame, names) for frame in frames)), "")
    stack = tuple(
        f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}" for frame in mine
    )
    return Standing(phase, module, stack)


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _phase(frame: FrameType) -> str:
    name = frame.f_code.co_name
    if name == "step" and "optim" in frame.f_code.co_filename:
        return _OPTIMIZER
    phase = _PHASES.get(name, "")
    number = frame.f_locals.get(_MICROBATCH) if phase == "forward" else None
    return f"{phase} micro-batch {number}" if isinstance(number, int) else phase


def _module(frame: FrameType, names: dict[int, str]) -> str:
    if not frame.f_code.co_varnames or frame.f_code.co_varnames[0] != "self":
        return ""
    one = frame.f_locals.get("self")
    if not isinstance(one, torch.nn.Module):
        return ""
    path, its = names.get(id(one)), type(one).__name__
    if path is None:
        return ""
    return f"{path}: {its}" if path else its


def _names(model: Any) -> dict[int, str]:
    names: dict[int, str] = {}
    for _, root, prefix, chunk in named_chunks(model):
        if isinstance(chunk, torch.nn.Module):
            for path, module in chunk.named_modules():
                inner = WRAPPERS.sub("", path)
                name = f"{prefix}{inner}" if inner else prefix and root
                names.setdefault(id(module), name)
    return names
