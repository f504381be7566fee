# SPDX-License-Identifier: Apache-2.0
"""Where the Python threads of this process are, and in which module and micro-batch.

Modules are found on the stack itself: the frames of `torch.nn.Module.__call__` hold them. So their
names are known without any hook, and cost nothing until somebody asks.
"""

from __future__ import annotations

import linecache
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from megatron import torch_profile
from megatron.torch_profile.plan.training_loop import named_chunks
from megatron.torch_trace.format.hang_records import ThreadStack

_MOST_FRAMES = 200
_MOST_THREADS = 64
_CALLS_OF_MODULES = ("_call_impl", "_wrapped_call_impl")
_MODULE_FILE = "torch/nn/modules/module.py"
_SCHEDULES_FILE = "pipeline_parallel/schedules.py"
_OURS = str(Path(torch_profile.__file__).parent) + os.sep
_MICRO_BATCH = "current_microbatch"
"""What Megatron's `forward_step` calls it, from core 0.7 on."""


def thread_stacks(trains: int, without: frozenset[int] = frozenset()) -> tuple[ThreadStack, ...]:
    """Every Python thread, the one that trains first.

    Args:
        trains: the thread that trains.
        without: threads that are left out.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = {
        ident: frame for ident, frame in sys._current_frames().items() if ident not in without
    }
    order = sorted(frames, key=lambda ident: ident != trains)[:_MOST_THREADS]
    return tuple(
        ThreadStack(
            names.get(ident, f"thread {ident}"),
            ident == trains,
            _stack(frames[ident]),
            _code(frames[ident]),
        )
        for ident in order
    )


def open_modules(trains: int, paths: Mapping[int, str]) -> tuple[str, ...]:
    """Modules whose forward runs in a thread, the outermost first.

    Args:
        trains: the thread.
        paths: the path of each module, by its `id`.
    """
    found: list[str] = []
    for frame in _outermost_first(trains):
        code = frame.f_code
        if code.co_name in _CALLS_OF_MODULES and code.co_filename.endswith(_MODULE_FILE):
            path = paths.get(id(frame.f_locals.get("self")))
            if path and path not in found[-1:]:
                found.append(path)
    return tuple(found)


def micro_batch(trains: int) -> int | None:
    """The micro-batch whose forward runs in a thread; None where Megatron's frames do not tell."""
    for frame in _outermost_first(trains):
        code = frame.f_code
        if code.co_name == "forward_step" and code.co_filename.endswith(_SCHEDULES_FILE):
            number = frame.f_locals.get(_MICRO_BATCH)
            if isinstance(number, int):
                return number
    return None


def module_paths(model: Any) -> dict[int, str]:
    """The path of each module of a model, a list of chunks or `Models`, by its `id`."""
    paths: dict[int, str] = {}
    for _, root, prefix, chunk in named_chunks(model):
        while hasattr(chunk, "module"):
            chunk = chunk.module
        with suppress(AttributeError):  # a program may train what is no module
            for path, module in chunk.named_modules():
                name = f"{prefix}{path}" if path else root
                paths.setdefault(id(module), f"{name}: {type(module).__name__}")
    return paths


def _stack(frame: FrameType) -> tuple[str, ...]:
    lines = []
    for one, _ in zip(_others(frame), range(_MOST_FRAMES), strict=False):
        code = one.f_code
        lines.append(f"{code.co_filename}:{one.f_lineno} {code.co_name}")
    return tuple(lines)


def _code(frame: FrameType) -> str:
    innermost = next(_others(frame), frame)
    return linecache.getline(innermost.f_code.co_filename, innermost.f_lineno).strip()


def _others(frame: FrameType) -> Iterator[FrameType]:
    """Frames that are not ours: what we wrap is where it was."""
    return (one for one in _frames(frame) if not one.f_code.co_filename.startswith(_OURS))


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _outermost_first(ident: int) -> list[FrameType]:
    return [*_frames(sys._current_frames().get(ident))][::-1]
