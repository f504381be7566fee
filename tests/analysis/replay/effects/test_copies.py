# SPDX-License-Identifier: Apache-2.0
"""Copies of pageable memory make the CPU wait until the stream has come to them."""

from __future__ import annotations

from pathlib import Path

import pytest
from machine import CALL, Act, Machine, copy, cpu, run, sync

from megatron.torch_trace.analysis.replay.change import CopiesScaled, KernelsScaled
from megatron.torch_trace.analysis.replay.replay import Replay

LONG = 300_000
NO_PAGEABLE = CopiesScaled("pageable", 0.0)


def batches(gemm: int, transfer: int, *, pinned: bool) -> dict[int, list[Act]]:
    """A batch is copied before each of five kernels; the CPU has little to do."""
    once = (cpu(20_000), copy(transfer, pinned=pinned), cpu(30_000), run("gemm", gemm))
    return {0: [*(act for _ in range(5) for act in once), sync()]}


@pytest.mark.parametrize("gemm", [40_000, 2 * LONG])
def test_a_recording_is_replayed_to_the_nanosecond(gemm: int, tmp_path: Path) -> None:
    machine = Machine(batches(gemm, LONG, pinned=False))
    replay = Replay.of(machine.record(tmp_path))
    assert replay.simulated_ns == replay.recorded_ns == machine.iteration_ns


def test_shorter_kernels_let_the_cpu_come_back_from_the_copy_earlier(tmp_path: Path) -> None:
    replay = Replay.of(Machine(batches(4 * LONG, LONG, pinned=False)).record(tmp_path))
    halved = replay.simulate([KernelsScaled("gemm", 0.5)])
    assert halved.iteration_ns == Machine(batches(2 * LONG, LONG, pinned=False)).iteration_ns


def test_without_them_the_cpu_runs_ahead_as_with_pinned_memory(tmp_path: Path) -> None:
    machine = Machine(batches(2 * LONG, LONG, pinned=False))
    replay = Replay.of(machine.record(tmp_path))
    pinned = Machine(batches(2 * LONG, 0, pinned=True)).iteration_ns
    assert machine.iteration_ns - pinned > 5 * LONG
    # Each call still takes what a launch takes; the machine's takes next to nothing.
    found = replay.simulate([NO_PAGEABLE]).iteration_ns
    assert abs(found - pinned) <= 5 * (10_000 - CALL)


def test_pinned_copies_are_let_alone(tmp_path: Path) -> None:
    programs = batches(2 * LONG, LONG, pinned=True)
    programs[0] += [copy(LONG), sync()]
    replay = Replay.of(Machine(programs).record(tmp_path))
    gain = replay.recorded_ns - replay.simulate([NO_PAGEABLE]).iteration_ns
    assert LONG - 10_000 <= gain <= LONG
