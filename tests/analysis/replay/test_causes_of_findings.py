# SPDX-License-Identifier: Apache-2.0
"""Changes that take the cause of a finding away: barriers, short kernels, what holds a CPU up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from machine import (
    CALL,
    LATENCY,
    LOADER,
    Act,
    Machine,
    barrier,
    collect,
    cpu,
    load,
    reduce,
    run,
    sync,
)
from trace_builder import TraceBuilder

from megatron.torch_trace.analysis.findings.remedies import remedies_of, remedy_of
from megatron.torch_trace.analysis.host.garbage_collections import COLLECTOR
from megatron.torch_trace.analysis.replay.change import (
    CollectionsScaled,
    CommunicationScaled,
    CudaGraphs,
    DataLoaderScaled,
    GpuAsMedian,
    LaunchScaled,
    MicroBatches,
    Overlapped,
    RankAsMedian,
    StagesBalanced,
    TinyKernelsScaled,
    VirtualStages,
    WithoutBarriers,
    WithoutSynchronisation,
)
from megatron.torch_trace.analysis.replay.replay import Replay
from megatron.torch_trace.analysis.results.analysis import Finding
from megatron.torch_trace.errors import UsageError


def taking_turns(between: Act) -> Mapping[int, Sequence[Act]]:
    """Each rank is late once before what lies between; then all of them reduce."""
    return {
        rank: [
            act
            for turn in range(4)
            for act in (
                cpu(100_000 if turn == rank else 20_000),
                run("gemm", 10_000),
                between,
                sync(),
            )
        ]
        + [reduce(7_000), sync()]
        for rank in range(4)
    }


def test_without_barriers_ranks_wait_for_each_other_only_where_data_are_sent(
    tmp_path: Path,
) -> None:
    recorded, without = Machine(taking_turns(barrier())), Machine(taking_turns(run("nothing", 0)))
    replay = Replay.of(recorded.record(tmp_path))
    assert replay.recorded_ns == recorded.iteration_ns
    assert replay.simulate([WithoutBarriers()]).iteration_ns == without.iteration_ns
    # Of four times 100 us one is left, that of each rank by itself.
    assert recorded.iteration_ns - without.iteration_ns == 3 * 80_000


def test_a_change_knows_nothing_of_the_one_that_was_asked_for_before(tmp_path: Path) -> None:
    path = Machine(taking_turns(barrier())).record(tmp_path)
    changes = (WithoutSynchronisation(), WithoutBarriers())
    asked = Replay.of(path)
    times = [asked.simulate([one]).iteration_ns for one in changes]
    assert times == [Replay.of(path).simulate([one]).iteration_ns for one in changes]
    assert times[0] != times[1]


def test_what_waits_for_nobody_has_no_barriers(tmp_path: Path) -> None:
    replay = Replay.of(Machine(taking_turns(run("nothing", 0))).record(tmp_path))
    with pytest.raises(UsageError, match=r"^--barriers none: there are no barriers"):
        replay.simulate([WithoutBarriers()])


def test_short_kernels_and_their_launches_cost_nothing_once_they_are_fused(tmp_path: Path) -> None:
    def programs(kernel: int) -> Mapping[int, Sequence[Act]]:
        return {0: [a for _ in range(20) for a in (cpu(3_000), run("add", kernel), sync())]}

    replay = Replay.of(Machine(programs(2_000)).record(tmp_path / "short"))
    gain = replay.recorded_ns - replay.simulate([TinyKernelsScaled(0.0)]).iteration_ns
    # The launch returns at once, and at most all of its latency but 1 us is the call's.
    assert gain == 20 * (2_000 + CALL)
    long = Replay.of(Machine(programs(LATENCY)).record(tmp_path / "long"))
    with pytest.raises(UsageError, match=r"^--tiny-kernels 0: no kernel .* is shorter than 5 us"):
        long.simulate([TinyKernelsScaled(0.0)])


def test_a_data_loader_that_takes_no_time_is_that_much_shorter(tmp_path: Path) -> None:
    trace = TraceBuilder(0, 1).step(1, 0, 130_000).op(LOADER, 10_000, 60_000)
    trace.op("aten::mm", 70_000, 90_000).gpu("gemm", 85_000, 120_000, launch=80_000)
    replay = Replay.of(trace.write(tmp_path / "rank-0.json"))
    assert replay.simulate([DataLoaderScaled(0.0)]).iteration_ns == 130_000 - 50_000
    assert replay.simulate([DataLoaderScaled(0.5)]).iteration_ns == 130_000 - 25_000


def test_a_recording_without_a_loader_cannot_tell_of_one(tmp_path: Path) -> None:
    replay = Replay.of(Machine({0: [cpu(9_000), run("gemm", 9_000)]}).record(tmp_path))
    with pytest.raises(UsageError, match=r"^--data-loader 0: no data loader is in these traces"):
        replay.simulate([DataLoaderScaled(0.0)])


def test_without_collections_ranks_that_collect_in_turn_wait_for_nobody(tmp_path: Path) -> None:
    def programs(time: int) -> Mapping[int, Sequence[Act]]:
        def turn(rank: int, number: int) -> list[Act]:
            mine = [collect(time)] if number == rank and time else []
            return [*mine, cpu(20_000), run("gemm", 10_000), reduce(7_000), sync()]

        return {rank: [act for n in range(2) for act in turn(rank, n)] for rank in range(2)}

    recorded, half, without = (Machine(programs(time)) for time in (90_000, 45_000, 0))
    replay = Replay.of(recorded.record(tmp_path))
    assert recorded.iteration_ns - without.iteration_ns == 2 * 90_000
    assert replay.simulate([CollectionsScaled(0.0)]).iteration_ns == without.iteration_ns
    assert replay.simulate([CollectionsScaled(0.5)]).iteration_ns == half.iteration_ns


def test_collections_and_the_data_loader_are_two_changes(tmp_path: Path) -> None:
    def programs(*waits: Act) -> Mapping[int, Sequence[Act]]:
        late = [*waits, cpu(30_000), run("gemm", 9_000), reduce(7_000), sync()]
        return {0: late, 1: late[len(waits) :]}

    path = Machine(programs(collect(40_000), load(60_000))).record(tmp_path)
    without = Machine(programs()).iteration_ns
    changes = [[DataLoaderScaled(0.0)], [CollectionsScaled(0.0)]]
    both = [DataLoaderScaled(0.0), CollectionsScaled(0.0)]
    asked = Replay.of(path)
    found = [asked.simulate(one) for one in [*changes, both]]
    assert [one.iteration_ns - without for one in found] == [40_000, 60_000, 0]
    # What was asked before changes neither the gain nor its error.
    alone = [Replay.of(path).simulate(one) for one in [*changes, both]]
    assert [one.error for one in found] == [one.error for one in alone]
    # With rank 0 left out there is still what the trace tells of its waits.
    assert {one.error.ranks for one in found} == {0.0}


def test_a_recording_without_collections_cannot_tell_of_one(tmp_path: Path) -> None:
    replay = Replay.of(Machine({0: [cpu(9_000), run("gemm", 9_000)]}).record(tmp_path))
    with pytest.raises(UsageError, match=r"^--garbage-collection 0: no garbage collection is in"):
        replay.simulate([CollectionsScaled(0.0)])


def test_launches_that_cost_nothing_help_only_where_launches_hold_the_cpu_up() -> None:
    def remedy(**evidence: object) -> object:
        return remedy_of(Finding("launch_bound", "low", "", evidence, ""))

    assert remedy() == (LaunchScaled(0.0),)
    assert remedy(held_by="cudaLaunchKernel") == (LaunchScaled(0.0),)
    assert remedy(held_by=COLLECTOR) == (CollectionsScaled(0.0),)
    assert remedy(held_by="train.py(7): step") == ()
    assert remedy(held_by="cudaMalloc") == ()
    assert remedy(held_by=None) == ()


def test_findings_name_what_takes_their_cause_away() -> None:
    def finding(code: str, **evidence: object) -> Finding:
        return Finding(code, "low", "", evidence, "")

    assert remedy_of(finding("data_loader")) == (DataLoaderScaled(0.0),)
    assert remedy_of(finding("data_loader_without_reserve")) == ()
    assert remedy_of(finding("garbage_collection")) == (CollectionsScaled(0.0),)
    assert remedy_of(finding("tiny_kernels")) == (TinyKernelsScaled(0.0),)
    assert remedy_of(finding("barriers")) == (WithoutBarriers(),)
    assert remedy_of(finding("barriers_of_dp")) == (WithoutBarriers(),)
    assert remedy_of(finding("barriersome")) == ()
    assert remedy_of(finding("exposed_communication_tp")) == (CommunicationScaled("tp", 0.0),)
    assert remedy_of(finding("straggler", rank=2, cause="compute")) == (GpuAsMedian(2),)
    assert remedy_of(finding("straggler", rank=2, cause="cpu")) == (RankAsMedian(2),)
    graphs = Finding("launch_bound", "low", "", {}, "Use CUDA graphs.")
    assert remedies_of(graphs) == ((CudaGraphs("layers"),), (LaunchScaled(0.0),))
    assert remedies_of(finding("launch_bound")) == ((LaunchScaled(0.0),),)
    bubble = finding("pipeline_bubble", microbatches=[4, 8], chunks=2)
    assert remedies_of(bubble) == (
        (VirtualStages(4),),
        (StagesBalanced(),),
        (MicroBatches(16),),
        (Overlapped("pp"),),
    )
