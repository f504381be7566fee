# SPDX-License-Identifier: Apache-2.0
"""torch's profiler of one window: made from what the user wants, stopped, and let go of."""

from __future__ import annotations

import inspect
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function

from megatron.torch_profile.export.late_events import WINDOW_END
from megatron.torch_profile.export.native_profiler import Result, native_profiler
from megatron.torch_profile.export.own_process import leave_without_destructors
from megatron.torch_profile.export.trace_export import let_go
from megatron.torch_profile.plan.capture_plan import CapturePlan
from megatron.torch_profile.plan.schedule import Window
from megatron.torch_profile.record import python_stacks
from megatron.torch_profile.record.other_profilers import ours

_open = False
"""Whether Kineto is at work for us."""
ACTIVITIES = {"cpu": ProfilerActivity.CPU, "cuda": ProfilerActivity.CUDA}


def prepared(plan: CapturePlan, window: Window, *, beside: bool) -> Any:
    """A `torch.profiler.profile` that warms up.

    Args:
        plan: what it records.
        window: for which window, in whose folder an execution trace goes.
        beside: whether a thread is to stop it, by `end_beside`.
    """
    config = plan.config
    options: dict[str, Any] = {
        "activities": [ACTIVITIES[name] for name in plan.activities],
        "record_shapes": config.record_shapes,
        "profile_memory": config.profile_memory,
        "with_stack": config.with_stack
        and not python_stacks.crash(sys.version_info[:3], torch.__version__),
        "with_flops": config.with_flops,
    }
    if experimental := experimental_config(beside=beside, stacks=options["with_stack"]):
        options["experimental_config"] = experimental
    if config.execution_trace:
        path = plan.window_folder(window) / plan.trace_name().artifact("execution_trace.json")
        options["execution_trace_observer"] = _execution_trace(path)
    return made(options)


def made(options: dict[str, Any]) -> Any:
    """A `torch.profiler.profile` that warms up.

    Args:
        options: its arguments, of which those are left out that this torch does not know.
    """
    global _open
    known = inspect.signature(torch.profiler.profile.__init__).parameters
    profiler = torch.profiler.profile(**{k: v for k, v in options.items() if k in known})
    _watch_forks()
    _open = True
    with ours():
        profiler.prepare_trace()
    return profiler


def experimental_config(*, beside: bool, stacks: bool) -> Any:
    """What torch offers beyond its profiler's arguments; None where nothing of it is wanted."""
    wanted = {}
    if beside:
        # What is recorded in all threads can be stopped in any.
        wanted["profile_all_threads"] = True
    if not stacks and _has_trace_only():
        # Only the trace is wanted, no events as objects of Python; with stacks torch refuses.
        wanted["trace_only"] = True
    return torch._C._profiler._ExperimentalConfig(**wanted) if wanted else None


@lru_cache(maxsize=1)
def _has_trace_only() -> bool:
    try:
        torch._C._profiler._ExperimentalConfig(trace_only=True)
    except (AttributeError, TypeError):
        return False
    return True


def start(profiler: Any) -> None:
    """Begin the recording of one that warms up."""
    with ours():
        profiler.start_trace()


def stop(profiler: Any) -> float:
    """End the recording; the result waits to be saved.

    Returns:
        How long Kineto's stop took, in seconds.
    """
    global _open
    began = time.monotonic()
    try:
        with ours():
            profiler.stop_trace()
    finally:
        _open = False
        # torch has one execution trace observer a process: the next window needs it free.
        if getattr(profiler, "execution_trace_observer", None) is not None:
            profiler.execution_trace_observer.unregister_callback()
    return time.monotonic() - began


def end_beside(profiler: Any) -> tuple[Callable[[], Result], float] | None:
    """End the recording here and now, but for the stop.

    Returns:
        What stops it, in whichever thread, and how long the GPU was waited for, in seconds. None
        where it has been ended by somebody else.
    """
    global _open
    native = native_profiler()
    observer = getattr(profiler, "execution_trace_observer", None)
    if observer is not None:
        observer.stop()
        observer.unregister_callback()
    began = time.monotonic()
    if profiler.use_device and hasattr(
        device := getattr(torch, profiler.use_device), "synchronize"
    ):
        device.synchronize()
    waited = time.monotonic() - began
    with record_function(WINDOW_END):
        pass
    torch.autograd.profiler._run_on_profiler_stop()
    let_go(profiler)
    if native is None or not native.running:
        _open = False
        return None

    def stop() -> Result:
        global _open
        try:
            return native.stop()
        finally:
            _open = False

    return stop, waited


def gpu_is_done(seconds: float) -> bool:
    """Whether this process's GPU comes to an end within so many seconds.

    A stop waits for the GPU, and the GPU may wait for a rank that is gone.
    """
    if not torch.cuda.is_initialized():
        return True
    wait = torch.cuda.synchronize  # lets other threads run meanwhile
    device = torch.cuda.current_device()
    thread = threading.Thread(target=wait, args=(device,), name="torch-profile-gpu", daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def has_result(profiler: Any) -> bool:
    """Whether a stopped one has something to save: saving a cancelled one ends the process."""
    result = getattr(profiler.profiler, "kineto_results", None)
    if result is None:
        return False
    # Microseconds before torch 2.3.
    start = getattr(result, "trace_start_ns", None) or getattr(result, "trace_start_us", None)
    return start is None or start() > 0


def discard(profiler: Any, *, started: bool, beside: bool = False) -> None:
    """End it without a result.

    Args:
        profiler: warming up, or recording.
        started: whether it records; Kineto must be started to be stopped.
        beside: whether it was to be stopped by `end_beside`.
    """
    global _open
    native = native_profiler()
    if started and beside and native is not None and not native.running:
        # Before torch 2.14, one of another thread ends ours, which is of all threads.
        _open = False
        let_go(profiler)
        return
    try:
        if not started:
            start(profiler)
        stop(profiler)
    finally:
        let_go(profiler)


def _execution_trace(path: Path) -> Any:
    path.parent.mkdir(parents=True, exist_ok=True)
    observer = torch.profiler.ExecutionTraceObserver()
    observer.register_callback(str(path))
    return observer


@lru_cache(maxsize=1)
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_as_without_us)


def _as_without_us() -> None:
    """Have a fork of training end as it would without us, should it end by `sys.exit`."""
    if _open:
        leave_without_destructors()
