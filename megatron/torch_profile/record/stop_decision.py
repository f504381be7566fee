# SPDX-License-Identifier: Apache-2.0
"""Who stops the profiler of a window and writes its trace: asked before it, and again at its end.

A thread beside training, wherever that can be. What decides against it may come up while a window
is open (a limit is set, a graph is captured), so the same question is asked twice; a window that
was prepared for training to stop stays so.
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path

import torch

from megatron.torch_profile.config import TorchProfileConfig, flag_of
from megatron.torch_profile.export.endings import Ending
from megatron.torch_profile.export.native_profiler import native_profiler
from megatron.torch_profile.followers import followers
from megatron.torch_profile.hooks import cuda_graphs

_OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
_NEVER = "2"
_FILES = 8
"""Descriptors: of the raw trace, of pipes to the program that compresses, and some to spare."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What decides beside the flags.

    Args:
        thread_may_stop: this torch can stop its profiler from another thread.
        graphs: CUDA graphs are replayed, or will be.
        memory_is_limited: an allocation may fail, and a failure in C++ ends the process.
        few_files: the limit on open files leaves no room for a thread that saves a trace.
        process_ends: Python has ended the script, and starts neither thread nor fork any more.
    """

    thread_may_stop: bool = True
    graphs: bool = False
    memory_is_limited: bool = False
    few_files: bool = False
    process_ends: bool = False

    @classmethod
    def now(cls) -> Circumstances:
        """As they are now."""
        return cls(
            thread_may_stop=native_profiler() is not None and _all_threads(),
            graphs=cuda_graphs.in_use(),
            memory_is_limited=_memory_is_limited(),
            few_files=_few_files(),
            process_ends=followers.process_ends,
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """Who stops a profiler.

    Args:
        ending: who does, and who writes.
        why: why training is held for it, in one clause; None where it is not, or the user has
            asked for it.
    """

    ending: Ending
    why: str | None = None


def decide(
    config: TorchProfileConfig, now: Circumstances, before: Decision | None = None
) -> Decision:
    """Who stops the profiler of a window, and who writes.

    Args:
        config: what the user wants.
        now: the circumstances.
        before: what was decided when the window was prepared, if it is about to end.
    """
    if before is not None and not before.ending.beside and not now.process_ends:
        return before
    if config.export == "sync" or now.process_ends:
        return Decision(Ending.TRAINING)
    why = _why_no_thread(config, now)
    return Decision(Ending.THREAD) if why is None else Decision(Ending.FORK, why)


def _why_no_thread(config: TorchProfileConfig, now: Circumstances) -> str | None:
    if config.profile_memory:
        return f"{flag_of('profile_memory')} records nothing with a profiler of all threads"
    if not now.thread_may_stop:
        return f"torch {torch.__version__} cannot stop its profiler from another thread here"
    if now.graphs:
        return "CUDA graphs are replayed, and no other thread may stop it beside a replay"
    if now.memory_is_limited:
        return "memory is limited (ulimit -v, or no overcommit), and the stop may need more"
    if now.few_files:
        return "the limit on open files (ulimit -n) leaves too few for a thread that saves"
    return None


def _all_threads() -> bool:
    try:
        torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    except TypeError:
        return False
    return hasattr(torch.autograd.profiler, "_run_on_profiler_stop")


def _memory_is_limited() -> bool:
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        return True
    try:
        return _OVERCOMMIT.read_text().strip() == _NEVER
    except OSError:
        return False


def _few_files() -> bool:
    held: list[int] = []
    try:
        for _ in range(_FILES):
            held.append(os.open(os.devnull, os.O_RDONLY))  # noqa: PERF401 - held once open
    except OSError:
        return True
    finally:
        for descriptor in held:
            os.close(descriptor)
    return False
