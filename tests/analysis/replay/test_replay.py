# SPDX-License-Identifier: Apache-2.0
"""A replay of hand-built ranks is what the same ranks do with other numbers, to the nanosecond."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from machine import (
    Act,
    Machine,
    cpu,
    device_sync,
    join,
    receive,
    reduce,
    run,
    send,
    side,
    sync,
)
from trace_builder import BACKWARD, TraceBuilder

from megatron.torch_trace.analysis.replay.change import (
    Change,
    CommunicationScaled,
    KernelsScaled,
    ModuleScaled,
    RankAsMedian,
    WithoutSynchronisation,
)
from megatron.torch_trace.analysis.replay.replay import Replay
from megatron.torch_trace.errors import UsageError

Programs = Mapping[int, Sequence[Act]]


def gpu_bound(gemm: int) -> Programs:
    """The CPU is done long before the GPU."""
    return {0: [step for _ in range(20) for step in (cpu(8_000), run("gemm", gemm))]}


def launch_bound(gemm: int, work: int = 50_000) -> Programs:
    """The GPU waits for each launch."""
    return {0: [step for _ in range(20) for step in (cpu(work), run("gemm", gemm))]}


def looking_each_time(gemm: int) -> Programs:
    """The CPU waits for the GPU after every kernel."""
    return {0: [step for _ in range(9) for step in (cpu(20_000), run("gemm", gemm), sync())]}


def two_streams(gemm: int) -> Programs:
    """Gradients are added up on another stream; in the end the main one waits for it."""
    once = (cpu(9_000), run("gemm", gemm), side("add", 40_000))
    return {
        0: [*(act for _ in range(9) for act in once), join(), run("last", 5_000), device_sync()]
    }


def collectives(gemm: int, transfer: int = 30_000, slow: int = 0) -> Programs:
    """Four ranks; rank 2 works longer on its CPU before each all-reduce."""
    return {
        rank: [
            act
            for _ in range(5)
            for act in (
                cpu(40_000 + (slow if rank == 2 else 0)),
                run("gemm", gemm),
                reduce(transfer),
                sync(),
            )
        ]
        for rank in range(4)
    }


def pipeline(gemm: int, *, eager: bool) -> Programs:
    """The first stage sends, the second works on what it gets; then back."""
    first = [
        act
        for _ in range(4)
        for act in (cpu(15_000), run("gemm", gemm), send(1, 7_000, eager=eager))
    ]
    second = [
        act for _ in range(4) for act in (cpu(15_000), receive(0, 7_000), run("other", 60_000))
    ]
    return {0: [*first, sync()], 1: [*second, sync()]}


HALF = KernelsScaled("gemm", 0.5)


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (gpu_bound, HALF),
        (launch_bound, HALF),
        (looking_each_time, HALF),
        (two_streams, HALF),
        (collectives, HALF),
        (lambda gemm: pipeline(gemm, eager=False), HALF),
        (lambda gemm: pipeline(gemm, eager=True), HALF),
    ],
    ids=["GPU", "launches", "syncs", "streams", "collectives", "rendezvous", "eager"],
)
def test_kernels_at_half_their_time_give_what_the_machine_takes_then(
    make: Callable[[int], Programs], change: Change, tmp_path: Path
) -> None:
    recorded, changed = Machine(make(30_000)), Machine(make(15_000))
    replay = Replay.of(recorded.record(tmp_path))
    assert (replay.recorded_ns, replay.simulated_ns, replay.error_ns) == (
        recorded.iteration_ns,
        recorded.iteration_ns,
        0,
    )
    assert replay.simulate([change]).iteration_ns == changed.iteration_ns


def test_transfers_are_scaled_and_waits_for_ranks_are_not(tmp_path: Path) -> None:
    recorded = Machine(collectives(20_000, transfer=30_000, slow=25_000))
    changed = Machine(collectives(20_000, transfer=15_000, slow=25_000))
    replay = Replay.of(recorded.record(tmp_path))
    result = replay.simulate([CommunicationScaled("dp", 0.5)])
    assert result.iteration_ns == changed.iteration_ns


def test_a_straggler_as_the_median_gives_the_iteration_without_it(tmp_path: Path) -> None:
    recorded = Machine(collectives(20_000, slow=25_000))
    healthy = Machine(collectives(20_000))
    replay = Replay.of(recorded.record(tmp_path))
    result = replay.simulate([RankAsMedian(2)])
    assert (result.iteration_ns, result.error_ns) == (healthy.iteration_ns, 0)
    assert recorded.iteration_ns - healthy.iteration_ns == 5 * 25_000
    assert replay.candidates()[0] == RankAsMedian(2)


def test_a_cpu_that_never_waits_runs_ahead(tmp_path: Path) -> None:
    replay = Replay.of(Machine(looking_each_time(30_000)).record(tmp_path))
    result = replay.simulate([WithoutSynchronisation()])
    # Nine times the longer of 30 us on the GPU with its gap, and 23 us on the CPU.
    assert result.iteration_ns == 20_000 + 5_000 + 9 * 30_000 + 8 * 1_500


def test_eager_sends_do_not_wait_for_who_receives(tmp_path: Path) -> None:
    eager = Replay.of(Machine(pipeline(20_000, eager=True)).record(tmp_path / "eager"))
    waiting = Replay.of(Machine(pipeline(20_000, eager=False)).record(tmp_path / "waiting"))
    assert (eager.found.joined.messages, eager.found.joined.eager) == (4, 4)
    assert (waiting.found.joined.messages, waiting.found.joined.eager) == (4, 0)


def test_messages_and_calls_of_ranks_that_are_not_there_keep_their_waits(tmp_path: Path) -> None:
    recorded = Machine(collectives(20_000, slow=25_000))
    recorded.record(tmp_path)
    replay = Replay.of([tmp_path / "rank-0.json", tmp_path / "rank-1.json"])
    assert replay.ranks == (0, 1)
    assert replay.absent_calls == 10
    assert replay.simulated_ns == replay.recorded_ns
    halved = replay.simulate([KernelsScaled("gemm", 0.5)])
    assert halved.iteration_ns == replay.recorded_ns - 5 * 10_000


def test_autograd_works_while_the_main_thread_waits(tmp_path: Path) -> None:
    def trace(backward: int) -> TraceBuilder:
        """Forward until 40 us; from 45 us on backward on another thread, back after 7 us."""
        found = TraceBuilder(0, 1).op("aten::mm", 0, 40_000)
        found.gpu("forward", 35_000, 50_000, launch=30_000)
        engine, end = "autograd::engine::evaluate_function: MmBackward0", 45_000 + backward
        found.op(engine, 45_000, end, tid=BACKWARD)
        found.gpu("backward", end - 1_000, end + 9_000, launch=end - 6_000, tid=BACKWARD)
        found.op("aten::add_", end + 7_000, end + 20_000)
        found.gpu("update", end + 17_000, end + 30_000, launch=end + 12_000)
        return found.step(1, 0, end + 25_000)

    trace(60_000).write(tmp_path / "rank-0.json")
    replay = Replay.of(tmp_path)
    assert (replay.simulated_ns, replay.error_ns) == (45_000 + 60_000 + 30_000, 0)
    names = [(piece.kind, piece.name, piece.time_ns) for piece in replay.critical_path()]
    assert names == [
        ("cpu", "training loop", 45_000),
        ("cpu", "backward pass", 60_000),
        ("cpu", "training loop", 17_000),
        ("compute", "other", 13_000),
    ]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (RankAsMedian(7), "--rank 7=median: there is no trace of rank 7; there are 0, 1, 2, 3."),
        (
            CommunicationScaled("tp", 0.5),
            "--comm tp*0.5: there is no communication of tp in these traces; there is dp.",
        ),
        (
            KernelsScaled("conv", 0.5),
            "--kernel conv*0.5: no kernel in these traces has a name that conv finds; "
            "`torch-trace analyze` shows the names.",
        ),
        (
            ModuleScaled("mlp", 0.5),
            "--module mlp*0.5: no module in these traces is called mlp; "
            "--torch-profile-spans modules records them.",
        ),
    ],
)
def test_a_change_of_what_is_not_there_is_one_sentence(
    change: Change, sentence: str, tmp_path: Path
) -> None:
    replay = Replay.of(Machine(collectives(20_000)).record(tmp_path))
    with pytest.raises(UsageError) as caught:
        replay.simulate([change])
    assert str(caught.value) == sentence


def test_a_trace_without_work_of_a_gpu_cannot_be_replayed(tmp_path: Path) -> None:
    path = TraceBuilder(0, 1).step(1, 0, 9_000).op("aten::mm", 0, 5_000).write(tmp_path / "a.json")
    with pytest.raises(UsageError, match=r"^nothing can be replayed: .*a\.json: no GPU work; .*"):
        Replay.of(path)


def test_a_reason_of_several_traces_is_said_once(tmp_path: Path) -> None:
    for rank in range(2):
        trace = TraceBuilder(rank, 2).step(1, 0, 9_000).op("aten::mm", 0, 5_000)
        trace.write(tmp_path / f"rank-{rank}.json")
    with pytest.raises(UsageError) as caught:
        Replay.of(tmp_path)
    assert str(caught.value) == (
        f"nothing can be replayed: {tmp_path}/rank-0.json, {tmp_path}/rank-1.json: no GPU work; "
        "record on a GPU, with --torch-profile-activities cpu cuda."
    )


def test_waits_that_the_trace_tells_are_not_inferred(tmp_path: Path) -> None:
    """Stream 9 works long; what is waited for is on stream 23, by the record of the event."""
    trace = TraceBuilder(0, 1).step(1, 0, 200_000)
    trace.gpu("long", 10_000, 150_000, launch=5_000, stream=9)
    trace.gpu("short", 20_000, 60_000, launch=15_000, stream=23)
    trace.slice("cuda_runtime", "cudaEventRecord", 18_000, 2, args={"correlation": 91})
    wait = {"correlation": 92, "wait_on_stream": 23, "wait_on_cuda_event_record_corr_id": 91}
    trace.slice("cuda_runtime", "cudaStreamWaitEvent", 19_000, 2, args={"correlation": 92})
    trace.slice(
        "cuda_sync", "Stream Wait Event", 19_000, 1, pid=0, tid=7, args={"stream": 7} | wait
    )
    trace.gpu("waits", 61_500, 80_000, launch=25_000)
    trace.slice("cuda_runtime", "cudaEventSynchronize", 30_000, 34_000, args={"correlation": 93})
    event = {"correlation": 93, "wait_on_stream": 23, "wait_on_cuda_event_record_corr_id": 91}
    trace.slice("cuda_sync", "Event Sync", 30_000, 34_000, pid=0, tid=7, args=event)
    trace.write(tmp_path / "rank-0.json")
    replay = Replay.of(tmp_path)
    assert replay.inferred_edges == {}
    halved = replay.simulate([KernelsScaled("short", 0.5)])
    # The call returns 20 us earlier, and so does the step's end.
    assert halved.iteration_ns == replay.recorded_ns - 20_000


def test_a_launch_that_waits_for_room_in_the_queue_is_no_work_of_the_cpu(tmp_path: Path) -> None:
    def programs(gemm: int) -> Programs:
        return {0: [act for _ in range(900) for act in (cpu(8_000), run("gemm", gemm))]}

    recorded = Machine(programs(90_000), room=300)
    changed = Machine(programs(60_000), room=300)
    replay = Replay.of(recorded.record(tmp_path))
    assert replay.simulated_ns == recorded.iteration_ns
    assert replay.inferred_edges["synchronisation"] > 500
    result = replay.simulate([KernelsScaled("gemm", 2 / 3)])
    assert result.iteration_ns == changed.iteration_ns


def test_of_ranks_that_are_absent_only_the_best_transfer_by_size_can_be_shorter(
    tmp_path: Path,
) -> None:
    """Calls of 30 and 80 us move as much: 50 us of the second are a wait for the other rank."""
    trace = TraceBuilder(0, 2).step(1, 0, 300_000)
    trace.collective(10_000, 40_000, nelems=1000, launch=5_000)
    trace.collective(110_000, 190_000, nelems=1000, launch=105_000)
    trace.call("cudaDeviceSynchronize", 106_000, 194_000)
    trace.write(tmp_path / "rank-0.json")
    replay = Replay.of(tmp_path)
    result = replay.simulate([CommunicationScaled("dp", 0.5)])
    assert replay.recorded_ns - result.iteration_ns == 15_000


def test_a_wait_before_autograd_s_first_note_is_no_work_of_the_cpu(tmp_path: Path) -> None:
    """The thread that the file has first begins last."""
    engine = "autograd::engine::evaluate_function: MmBackward0"
    trace = TraceBuilder(0, 1).op(engine, 900_000, 960_000, tid=BACKWARD)
    trace.gpu("backward", 955_000, 965_000, launch=950_000, tid=BACKWARD)
    trace.step(1, 0, 990_000).op("aten::mm", 0, 20_000)
    trace.gpu("forward", 15_000, 515_000, launch=10_000)
    trace.call("cudaDeviceSynchronize", 30_000, 519_000)
    trace.op("aten::add_", 970_000, 990_000).gpu("update", 985_000, 988_000, launch=980_000)
    replay = Replay.of(trace.write(tmp_path / "rank-0.json"))
    assert replay.simulated_ns == 990_000
    shorter = replay.simulate([KernelsScaled("forward", 0.1)])
    assert shorter.iteration_ns == 990_000 - 450_000
