# SPDX-License-Identifier: Apache-2.0
"""What holds the CPU up, where one thing does so most of the time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from megatron.torch_trace.analysis.findings.host.garbage_collector import (
    against_collections,
    for_collector,
)
from megatron.torch_trace.analysis.findings.megatron_flags import flags, has_flag
from megatron.torch_trace.analysis.findings.shares import milliseconds
from megatron.torch_trace.analysis.host.garbage_collections import COLLECTOR
from megatron.torch_trace.analysis.host.idle_holders import COLLECTION, PYTHON, IdleHolder
from megatron.torch_trace.analysis.host.long_gaps import LongGaps
from megatron.torch_trace.analysis.results.analysis import RankResult
from megatron.torch_trace.analysis.timeline.moment import Example
from megatron.torch_trace.format.categories import is_kernel_launch
from megatron.torch_trace.wording import counted, duration, percent

_MOSTLY = 0.5
"""Of the idle time that the CPU makes: then ending this one thing ends most of it."""
_LONG_NS = 50_000
"""Of each call, on average: ordinary launches and Python between them are shorter."""

_UNNAMED = (
    "Look in the timeline at what the CPU does in these gaps (data, logging, "
    "checkpoints,{collector} waiting for a file or another process); with stacks in the trace "
    "(`--torch-profile-with-stack`) the Python function is named here."
)
_ALLOCATES = re.compile(r"(?:cuda|hip)(?:Malloc|Free)(?:Async)?|(?:cu|hip)Mem(?:Create|Map|Unmap)")
"""Calls by which an allocator takes memory of the device and gives it back; not of the host."""
_EMPTIES = "--empty-unused-memory-level"


@dataclass(frozen=True, slots=True)
class Held:
    """One Python function, one call of the runtime, or the collector, that holds up the launches.

    Args:
        text, advice: sentences; evidence: the numbers behind them; example: the longest.
    """

    text: str
    advice: str
    evidence: dict[str, Any]
    example: Example | None


def held_by(ranks: Sequence[RankResult]) -> Held | None:
    """What does so on the rank that waits most for its CPU; None where it is many small things."""
    rank = max(ranks, key=lambda rank: rank.host.idle.cpu_ns)
    idle = rank.host.idle.cpu_ns
    for one in rank.host.idle_holders:
        if one.time_ns >= _MOSTLY * idle and one.time_ns >= _LONG_NS * one.times:
            return Held(
                _text(rank, one, one.time_ns / idle),
                _advice(one, ranks),
                {"held_by": one.name, "held_ns": one.time_ns, "held_times": one.times},
                (rank.rank, one.longest) if one.longest else None,
            )
    gaps = rank.host.long_gaps
    return _in_gaps(rank, gaps, ranks) if gaps and gaps.time_ns >= _MOSTLY * idle else None


def _in_gaps(rank: RankResult, gaps: LongGaps, ranks: Sequence[RankResult]) -> Held:
    """The CPU does something other than launch work, now and then and for long."""
    longest = duration(gaps.longest.duration_ns) if gaps.longest else "long"
    text = (
        f"On {rank.name}, {percent(gaps.time_ns / rank.host.idle.cpu_ns)} of that time is in "
        f"{counted(gaps.pieces, 'gap')} of 0.5 ms or more (the longest {longest}): there the CPU "
        "does something other than launch work"
    )
    inside = f", for {milliseconds(gaps.function_ns)} in {gaps.function}" if gaps.function else ""
    return Held(
        f"{text}{inside}.",
        _for_function(gaps.function, ranks) if gaps.function else _unnamed(ranks),
        {
            "held_by": gaps.function,
            "held_ns": gaps.function_ns if gaps.function else gaps.time_ns,
            "held_times": gaps.pieces,
        },
        (rank.rank, gaps.longest) if gaps.longest else None,
    )


def _unnamed(ranks: Sequence[RankResult]) -> str:
    collector = for_collector(ranks)
    return _UNNAMED.format(collector=f" {collector}," if collector else "")


def _text(rank: RankResult, one: IdleHolder, share: float) -> str:
    mean = duration(one.time_ns / one.times)
    if one.kind in (PYTHON, COLLECTION):
        return (
            f"For {percent(share)} of that time the CPU of {rank.name} runs {one.name}, "
            f"{counted(one.times, 'time')}, {milliseconds(one.time_ns)} in all."
        )
    call = "launch call" if is_kernel_launch(one.name) else "call"
    return (
        f"For {percent(share)} of that time the CPU of {rank.name} is inside {one.name}: "
        f"{counted(one.times, call)} of {mean} on average."
    )


def _advice(one: IdleHolder, ranks: Sequence[RankResult]) -> str:
    if one.kind in (PYTHON, COLLECTION):
        return _for_function(one.name, ranks)
    if is_kernel_launch(one.name):
        return (
            "Find out why the launch call lasts so long; a launch takes about 5 us. Common "
            "reasons: kernels are loaded at their first use (record later iterations, or set "
            "`CUDA_MODULE_LOADING=EAGER`), another process or profiler uses the same GPU, a busy "
            "CPU."
        )
    if "memcpy" in one.name.lower():
        return (
            f"Pin the host's memory and copy with `non_blocking`: {one.name} holds the CPU up "
            "while it copies from or to memory that is not pinned."
        )
    if _ALLOCATES.fullmatch(one.name):
        return _for_allocator(one.name, ranks)
    return (
        f"Call {one.name} less often in the training loop: calls that allocate, free or register "
        "memory hold up all launches (keep buffers, pin memory once, let torch's allocator cache)."
    )


def _for_allocator(call: str, ranks: Sequence[RankResult]) -> str:
    """Torch's allocator keeps what it has; that it asks CUDA in every iteration has a cause."""
    emptied = flags(ranks, f"`{_EMPTIES}`")
    if has_flag(ranks, _EMPTIES):
        emptied = f"(this run gives `{_EMPTIES}`)"
    return (
        f"Find out why torch's allocator calls {call} while training runs: the memory of the GPU "
        "is full, so it gives pieces back and asks for others (set "
        "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, or hold less memory), or something "
        f"calls `torch.cuda.empty_cache()` {emptied}. `torch-trace memory` shows who holds the "
        "memory (record with `--torch-profile-memory-snapshot`)."
    )


def _for_function(name: str, ranks: Sequence[RankResult]) -> str:
    return against_collections(ranks) if name == COLLECTOR else python_advice(name)


def python_advice(function: str) -> str:
    """How to keep a Python function from holding up the launches."""
    return (
        f"Make {function} faster, call it less often, or move it out of the training loop (into a "
        "worker of the data loader, another thread or process)."
    )
