# SPDX-License-Identifier: Apache-2.0
"""A few steps of a case under torch's profiler, as a trace in a window of the run folder."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from megatron.torch_profile.component.step import Step
from megatron.torch_profile.export.compression import compress
from megatron.torch_profile.export.trace_export import Export, let_go, save
from megatron.torch_profile.plan.schedule import Window
from megatron.torch_profile.record import kineto
from megatron.torch_profile.record.trace_metadata import TraceNotes
from megatron.torch_profile.spans.ranges import Range
from megatron.torch_trace.format.file_names import TraceName, WindowName


def record(
    step: Step,
    window: WindowName,
    run_folder: Path,
    metadata: Mapping[str, Any],
    *,
    stacks: bool,
) -> Path:
    """Record the steps of a window.

    Args:
        step: warm already.
        window: which iterations they are.
        run_folder: in which the window gets its folder.
        metadata: what the trace says of itself; rank and world size are in it.
        stacks: record Python's stacks.

    Returns:
        The finished trace.

    Raises:
        TorchTraceError, OSError: it was not written.
    """
    gpu = torch.cuda.is_available() and metadata["device"] != "cpu"
    activities = [kineto.ACTIVITIES[name] for name in (("cpu", "cuda") if gpu else ("cpu",))]
    profiler = kineto.made(
        {
            "activities": activities,
            "record_shapes": True,
            # Of the GPU; `torch-trace memory` reads it.
            "profile_memory": gpu,
            "with_stack": stacks,
        }
    )
    started = False
    try:
        _one(step)  # what a profiler that warms up loads is no part of the recording
        kineto.start(profiler)
        started = True
        span = Window(window.first, window.last, warmup=0)
        notes = TraceNotes(profiler, dict(metadata), span)
        try:
            for iteration in range(window.first, window.last + 1):
                step.prepare()
                with Range(f"ProfilerStep#{iteration}"):
                    step()
            _wait()
            notes.complete()
        finally:
            notes.close()
        kineto.stop(profiler)
        return _written(profiler, span, run_folder / str(window), metadata, gpu)
    except BaseException:
        with suppress(Exception):
            if profiler.profiler is not None:
                kineto.discard(profiler, started=started)
        raise


def _written(
    profiler: Any, span: Window, folder: Path, metadata: Mapping[str, Any], gpu: bool
) -> Path:
    export = Export(
        rank=metadata["rank"],
        window=span,
        recorded=tuple(range(span.first, span.last + 1)),
        folder=folder,
        name=TraceName(metadata["rank"], metadata["world_size"]),
        gpu=gpu,
    )
    export.prepare()
    try:
        save(profiler, export)
    finally:
        let_go(profiler)
    compress(export.raw, export.target, "gzip")
    return export.target


def _one(step: Step) -> None:
    step.prepare()
    step()
    _wait()


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
