# SPDX-License-Identifier: Apache-2.0
"""What a process holds after a window of torch.profiler alone, and after malloc_trim.

    python benchmarks/freed_memory.py --operators 200000 [--thread] [--give-back]

Small operators on the CPU are recorded, saved and freed, some times; with `--thread` a thread
stops, saves and frees, as capture does. Each line is one window.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from megatron.torch_profile.export.native_profiler import Result, native_profiler
from megatron.torch_profile.export.own_process import resident_bytes
from megatron.torch_trace.system.freed_memory import give_back

_KEPT_EVERY, _KEPT_BYTES = 1000, 700
"""What a training allocates meanwhile and keeps for longer."""


def in_thread(call: Callable[[], Any]) -> Any:
    """Its answer."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(call()))
    thread.start()
    thread.join()
    return answers[0]


def work(operators: int, kept: list[bytes]) -> None:
    """So many operators."""
    ones = torch.ones(4)
    for at in range(operators):
        _ = ones + 1
        if at % _KEPT_EVERY == 0:
            kept.append(bytes(_KEPT_BYTES))


def window(operators: int, path: str, kept: list[bytes], *, thread: bool) -> int:
    """Record a window, save and free it.

    Returns:
        Bytes that the process held before it was freed.
    """
    experimental = torch._C._profiler._ExperimentalConfig(profile_all_threads=True, trace_only=True)
    activities = [torch.profiler.ProfilerActivity.CPU]
    profiler = torch.profiler.profile(activities=activities, experimental_config=experimental)
    profiler.prepare_trace()
    profiler.start_trace()
    work(operators, kept)
    native = native_profiler()
    if thread and native is not None:
        result: Result = in_thread(native.stop)
        in_thread(lambda: result.save(path))
        profiler.profiler = None
        held = resident_bytes()
        in_thread(result.free)
    else:
        profiler.stop_trace()
        profiler.export_chrome_trace(path)
        held = resident_bytes()
        profiler.profiler = None
    return held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operators", type=int, default=200_000, help="[default: %(default)s]")
    parser.add_argument("--windows", type=int, default=3, help="[default: %(default)s]")
    parser.add_argument("--thread", action="store_true", help="a thread stops, saves and frees")
    parser.add_argument("--give-back", action="store_true", help="then malloc_trim")
    options = parser.parse_args()
    os.environ.setdefault("KINETO_LOG_LEVEL", "4")
    kept: list[bytes] = []
    work(1000, kept)
    print(f"begin: {resident_bytes() / 1e6:.0f} MB")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        for number in range(1, options.windows + 1):
            held = window(options.operators, str(path), kept, thread=options.thread)
            line = (
                f"window {number}, {path.stat().st_size / 1e6:.0f} MB raw: {held / 1e6:.0f} MB at "
                f"its end, {resident_bytes() / 1e6:.0f} MB freed"
            )
            if options.give_back:
                began = time.thread_time()
                give_back()
                took = time.thread_time() - began
                line += (
                    f", {resident_bytes() / 1e6:.0f} MB given back in {took * 1e3:.0f} ms of CPU"
                )
            print(line, flush=True)


if __name__ == "__main__":
    main()
