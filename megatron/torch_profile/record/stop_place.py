# SPDX-License-Identifier: Apache-2.0
"""Where the profiler of a window is stopped: in a thread beside training, or by training."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import torch

from megatron.torch_profile.config import TorchProfileConfig, flag_of
from megatron.torch_profile.export.native_profiler import native_profiler
from megatron.torch_profile.record import cuda_graphs

_OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
_NEVER = "2"
_FILES = 8
"""Descriptors: of the raw trace, of pipes to the program that compresses, and some to spare."""


def why_training_stops_it(config: TorchProfileConfig) -> str | None:
    """Why training is held for the profiler's stop, in one clause; None if it is not.

    Args:
        config: what the user wants.
    """
    for name in ("key_averages", "stacks"):
        if getattr(config, name):
            return f"{flag_of(name)} needs the events as Python objects"
    if config.profile_memory:
        return f"{flag_of('profile_memory')} records nothing with a profiler of all threads"
    if config.export == "sync":
        return f"{flag_of('export')} sync"
    if native_profiler() is None or not _all_threads():
        return f"torch {torch.__version__} cannot stop its profiler from another thread here"
    if cuda_graphs.in_use():
        return "CUDA graphs are replayed, and no other thread may stop it beside a replay"
    if memory_may_be_refused():
        return "memory is limited (ulimit -v, or no overcommit), and the stop may need more"
    return None


def _all_threads() -> bool:
    try:
        torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    except TypeError:
        return False
    return hasattr(torch.autograd.profiler, "_run_on_profiler_stop")


def memory_may_be_refused() -> bool:
    """An exception of C++ ends the process, in a function that is called so."""
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        return True
    try:
        return _OVERCOMMIT.read_text().strip() == _NEVER
    except OSError:
        return False


def short_of_files() -> bool:
    """Whether the limit on open files leaves no room for a thread that saves a trace."""
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
