# SPDX-License-Identifier: Apache-2.0
"""What changes of the GPU's work take away, and what they leave."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from machine import Machine, copy, cpu, reduce, run, sync
from trace_builder import TraceBuilder

from megatron.torch_trace.analysis.replay.change import (
    COPY_KINDS,
    Change,
    CommunicationScaled,
    CopiesScaled,
    KernelsScaled,
    TinyKernelsScaled,
    WithoutBarriers,
    WithoutSynchronisation,
)
from megatron.torch_trace.analysis.replay.replay import Replay
from megatron.torch_trace.errors import UsageError

STEP = 400_000


def gain(trace: TraceBuilder, change: Change, folder: Path) -> int:
    replay = Replay.of(trace.write(folder / "rank-0.json"))
    result = replay.simulate([change])
    # Usual latencies gain the same.
    assert result.error.replay == 0
    return replay.recorded_ns - result.iteration_ns


def alone(*calls: tuple[int, int], name: str = "allreduce") -> TraceBuilder:
    """Collectives of a rank whose peer is not recorded: their elements, and how long they take."""
    trace = TraceBuilder(0, 2)
    for number, (elements, length) in enumerate(calls):
        at = 10_000 + 120_000 * number
        trace.collective(at, at + length, nelems=elements, launch=at - 5_000, name=name)
        trace.call("cudaDeviceSynchronize", at, at + length + 4_000)
    return trace.step(1, 0, STEP)


@pytest.mark.parametrize(
    ("calls", "transfers"),
    [
        # The larger one moves twice as much at the best rate, so 20 us of it are a wait.
        ([(1_000, 30_000), (2_000, 80_000)], 30_000 + 60_000),
        # A small one takes as long as the shortest of its kind at least.
        ([(1_000, 30_000), (10, 28_000)], 30_000 + 28_000),
        ([(1_000, 30_000), (1_000, 80_000)], 30_000 + 30_000),
    ],
)
def test_of_absent_ranks_transfers_are_what_the_best_rate_of_their_kind_gives(
    calls: list[tuple[int, int]], transfers: int, tmp_path: Path
) -> None:
    half = CommunicationScaled("dp", 0.5)
    assert gain(alone(*calls), half, tmp_path) == transfers // 2
    by_name = KernelsScaled("nccl", 0.5)
    assert gain(alone(*calls), by_name, tmp_path) == transfers // 2


def test_all_communication_is_that_of_every_dimension(tmp_path: Path) -> None:
    programs = {rank: [cpu(9_000), reduce(30_000, "dp"), reduce(20_000, "tp")] for rank in (0, 1)}
    replay = Replay.of(Machine(programs).record(tmp_path))
    gains = [
        replay.recorded_ns - replay.simulate([CommunicationScaled(name, 0.5)]).iteration_ns
        for name in ("dp", "tp", "all")
    ]
    assert gains == [15_000, 10_000, 25_000]


@pytest.mark.parametrize("pattern", ["^VOID", r"_kernel$", r"int, float\*\)$"])
def test_a_pattern_finds_a_kernel_by_its_whole_and_by_its_short_name(
    pattern: str, tmp_path: Path
) -> None:
    name = "void at::native::vectorized_elementwise_kernel<4, at::native::F>(int, float*)"
    trace = TraceBuilder(0, 1).gpu(name, 10_000, 450_000, launch=5_000).step(1, 0, 20_000)
    assert gain(trace, KernelsScaled(pattern, 0.5), tmp_path) == 220_000


def test_a_barrier_of_which_a_rank_is_absent_takes_no_time_and_others_as_long_as_before(
    tmp_path: Path,
) -> None:
    trace = alone((1, 30_000), name="barrier")
    trace.collective(350_000, 390_000, launch=345_000, name="allgather")
    trace.call("cudaDeviceSynchronize", 350_000, 394_000)
    assert gain(trace, WithoutBarriers(), tmp_path) == 30_000


def test_a_call_that_launches_longer_work_too_is_no_call_of_tiny_kernels(tmp_path: Path) -> None:
    """A CUDA graph of a tiny kernel and a long one; a call of 20 us launches both."""
    trace = TraceBuilder(0, 1).gpu("tiny", 40_000, 42_000)
    number = {"correlation": trace.correlation}
    trace.gpu("long", 43_500, 90_000, args=number)
    trace.call("cudaGraphLaunch", 10_000, 30_000, args=number)
    trace.call("cudaDeviceSynchronize", 31_000, 94_000)
    assert gain(trace.step(1, 0, 100_000), TinyKernelsScaled(0.0), tmp_path) == 2_000


def test_short_communication_is_no_tiny_kernel(tmp_path: Path) -> None:
    programs = {rank: [cpu(9_000), reduce(2_000), run("add", 2_000), sync()] for rank in (0, 1)}
    replay = Replay.of(Machine(programs).record(tmp_path))
    shorter = replay.recorded_ns - replay.simulate([TinyKernelsScaled(0.0)]).iteration_ns
    assert shorter == 2_000


KINDS = [
    ("Memcpy HtoD (Pageable -> Device)", {"pageable", "all"}),
    ("Memcpy DtoH (Device -> Pinned)", {"pinned", "all"}),
    ("Memcpy DtoD (Device -> Device)", {"device", "all"}),
    ("CopyDeviceToDevice", {"device", "all"}),
    ("vectorized_copy", set()),
]


@pytest.mark.parametrize(("name", "kinds"), KINDS)
def test_copies_are_of_the_memory_that_they_name(
    name: str, kinds: set[str], tmp_path: Path
) -> None:
    trace = TraceBuilder(0, 1).gpu(name, 10_000, 450_000, launch=5_000).step(1, 0, 20_000)
    replay = Replay.of(trace.write(tmp_path / "rank-0.json"))
    gains = {}
    for kind in COPY_KINDS:
        with suppress(UsageError):
            result = replay.simulate([CopiesScaled(kind, 0.5)])
            gains[kind] = replay.recorded_ns - result.iteration_ns
    assert gains == dict.fromkeys(kinds, 220_000)


def test_copies_that_are_not_there_are_named(tmp_path: Path) -> None:
    replay = Replay.of(Machine({0: [copy(90_000, pinned=True)]}).record(tmp_path))
    with pytest.raises(UsageError) as refused:
        replay.simulate([CopiesScaled("pageable", 0.5)])
    assert str(refused.value) == (
        "--copies pageable=0.5: there are no copies of this kind in these traces."
    )


@pytest.mark.parametrize("factor", [0.5, 2.0])
@pytest.mark.parametrize("gemm", [9_000, 90_000])
def test_copies_of_another_time_hold_the_cpu_as_much_shorter_or_longer(
    gemm: int, factor: float, tmp_path: Path
) -> None:
    def machine(transfer: float) -> Machine:
        work = [run("gemm", gemm), copy(round(transfer)), cpu(200_000), run("gemm", 9_000)]
        return Machine({0: work})

    replay = Replay.of(machine(80_000).record(tmp_path))
    for kind in ("pageable", "all"):
        result = replay.simulate([CopiesScaled(kind, factor)])
        assert result.iteration_ns == machine(80_000 * factor).iteration_ns


def test_at_0_nobody_waits_for_a_copy(tmp_path: Path) -> None:
    program = [run("gemm", 90_000), copy(80_000), cpu(200_000), run("gemm", 9_000)]
    replay = Replay.of(Machine({0: program}).record(tmp_path))
    for kind in ("pageable", "all"):
        # The CPU goes on after the 10 us of a launch, and works beside the first kernel.
        result = replay.simulate([CopiesScaled(kind, 0.0)])
        assert abs(result.iteration_ns - (2 + 10_000 + 200_000 + 5_000 + 9_000)) <= 10_000


def test_a_call_that_waits_for_a_copy_alone_does_not_wait_at_0(tmp_path: Path) -> None:
    program = [copy(80_000, pinned=True), sync(), cpu(20_000), run("gemm", 9_000)]
    replay = Replay.of(Machine({0: program}).record(tmp_path))
    found = replay.simulate([CopiesScaled("pinned", 0.0)]).iteration_ns
    assert found < 60_000
    both: list[Change] = [WithoutSynchronisation(), CopiesScaled("pinned", 0.0)]
    assert replay.simulate(both).iteration_ns == replay.simulate(both[::-1]).iteration_ns == found
