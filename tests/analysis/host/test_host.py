# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import BACKWARD, GEMM, NCCL, TraceBuilder

from megatron.torch_trace.analysis.host.data_loader import DataLoading, LoaderSupply
from megatron.torch_trace.analysis.host.idle import LoopThread, SyncRow, look_at_host
from megatron.torch_trace.analysis.host.idle_causes import IdleCauses
from megatron.torch_trace.analysis.host.idle_holders import IdleHolder
from megatron.torch_trace.analysis.host.not_started import NotStarted
from megatron.torch_trace.analysis.host.python_frames import PythonRow
from megatron.torch_trace.analysis.run.rank import analyse_rank
from megatron.torch_trace.analysis.timeline.launches import LaunchStatistics, launch_statistics

LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
MS = 1_000_000
PIN = 300
"""torch's pin-memory thread."""


def test_idle_time_is_split_by_what_the_next_work_waited_for(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 100)
    trace.gpu(GEMM, 10, 20, launch=4)
    # Launched at 50, ran at 60: 30 the CPU had not launched, of these 10 in the data loader.
    trace.annotation(LOADER, 25, 35).gpu(GEMM, 60, 70, launch=50)
    host = look_at_host(trace.timeline(tmp_path))
    # Before the first kernel 4 + 6; behind the last one all has run, and nothing is launched.
    assert host.idle == IdleCauses(data_ns=10, sync_ns=0, cpu_ns=54, gpu_ns=16, unknown_ns=0)
    assert host.data_loading == (DataLoading(1, 1, 10, 10),)


def test_only_torch_s_own_range_is_the_data_loader(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 100).annotation("train_epoch(dataloader)", 0, 100)
    trace.gpu(GEMM, 60, 100, launch=50)
    host = look_at_host(trace.timeline(tmp_path))
    assert host.idle == IdleCauses(data_ns=0, sync_ns=0, cpu_ns=50, gpu_ns=10, unknown_ns=0)
    assert host.data_loading == ()


def test_a_synchronisation_has_its_own_idle_time_until_one_more_launch(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 100).gpu(GEMM, 0, 20, launch=0)
    trace.op("aten::item", 4, 30).call("cudaStreamSynchronize", 5, 22)
    trace.gpu(GEMM, 60, 100, launch=50)
    host = look_at_host(trace.timeline(tmp_path))
    # [20, 22) it still waits, and a launch takes 2; from 24 to 50 it does other things.
    assert host.idle == IdleCauses(data_ns=0, sync_ns=4, cpu_ns=26, gpu_ns=10, unknown_ns=0)
    assert host.syncs == (SyncRow("cudaStreamSynchronize", "aten::item", 1, 17, 17),)


def test_a_wait_of_another_thread_holds_up_no_launch_of_the_loop(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 100).gpu(GEMM, 0, 20, launch=0)
    trace.call("cudaStreamSynchronize", 5, 50, tid=PIN).gpu(GEMM, 60, 100, launch=50)
    assert look_at_host(trace.timeline(tmp_path)).idle.cpu_ns == 30


def test_a_wait_of_the_loop_holds_up_autograd_s_launches(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 100).gpu(GEMM, 0, 20, launch=0)
    trace.call("cudaStreamSynchronize", 5, 48)
    trace.op("autograd::engine::evaluate_function: MmBackward0", 49, 55, tid=BACKWARD)
    trace.gpu(GEMM, 60, 100, launch=50, tid=BACKWARD)
    assert look_at_host(trace.timeline(tmp_path)).idle.sync_ns == 30


def test_a_launch_call_that_lasts_is_time_of_the_cpu(tmp_path: Path) -> None:
    trace = (
        TraceBuilder()
        .step(1, 0, 400_000)
        .call("cudaLaunchKernel", 10_000, 300_000, args={"correlation": 1})
    )
    trace.gpu(GEMM, 302_000, 400_000)
    host = look_at_host(trace.timeline(tmp_path))
    # Its last 20 us are what any launch may take.
    assert host.idle == IdleCauses(0, 0, cpu_ns=280_000, gpu_ns=22_000, unknown_ns=0)
    assert host.idle_holders == (IdleHolder("call", "cudaLaunchKernel", 1, 270_000),)


def test_work_that_does_not_start_is_told_from_launches_on_their_way(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 1_000_000).gpu(GEMM, 8_000, 100_000, launch=0)
    trace.call("cudaStreamWaitEvent", 90_000, 91_000)
    trace.gpu(GEMM, 400_000, 500_000, launch=95_000).gpu(NCCL, 700_000, 1_000_000, launch=450_000)
    assert look_at_host(trace.timeline(tmp_path)).not_started == NotStarted(
        pieces=3,
        time_ns=8_000 + 300_000 + 200_000,
        median_ns=200_000,
        held_ns=500_000,
        held_by_event_ns=300_000,
        work=GEMM,
    )


def test_python_that_holds_up_the_launches_is_named_with_its_idle_time(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, MS).gpu(GEMM, 0, 100_000, launch=0)
    trace.slice("python_function", "train.py(7): train_step", 0, 960_000)
    trace.slice("python_function", "mydata.py(12): decode", 50_000, 700_000)
    trace.gpu(GEMM, 900_000, MS, launch=900_000)
    assert look_at_host(trace.timeline(tmp_path)).idle_holders == (
        IdleHolder("python", "mydata.py(12): decode", 1, 650_000),
        IdleHolder("python", "train.py(7): train_step", 1, 150_000),
    )


def test_without_steps_the_loader_is_told_of_the_whole_window(tmp_path: Path) -> None:
    trace = TraceBuilder().gpu(GEMM, 0, 10, launch=0).annotation(LOADER, 12, 40)
    trace.gpu(GEMM, 60, 100, launch=50)
    host = look_at_host(trace.timeline(tmp_path))
    assert host.data_loading == (DataLoading(None, 1, 28, 28),)
    assert host.idle == IdleCauses(data_ns=28, sync_ns=0, cpu_ns=12, gpu_ns=10, unknown_ns=0)


def test_the_synchronisation_with_which_the_profiler_ends_is_not_the_user_s(
    tmp_path: Path,
) -> None:
    trace = TraceBuilder().step(1, 0, 50).gpu(GEMM, 0, 60, launch=0)
    trace.call("cudaDeviceSynchronize", 52, 1_800_000)
    assert look_at_host(trace.timeline(tmp_path)).syncs == ()


def test_the_loop_s_thread_adds_up_to_the_window(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 100).annotation(LOADER, 0, 10)
    trace.op("aten::mm", 20, 50).call("cudaStreamSynchronize", 40, 45)
    trace.op("MulBackward0", 60, 80, tid=BACKWARD).gpu(GEMM, 30, 40, launch=25)
    loop = look_at_host(trace.timeline(tmp_path)).loop_thread
    assert loop == LoopThread(
        operators_ns=25, waiting_ns=5, data_ns=10, other_ns=60, backward_ns=20
    )


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 900), st.integers(0, 60), st.one_of(st.none(), st.integers(0, 900))
        ),
        min_size=1,
        max_size=12,
    )
)
def test_the_causes_of_idle_time_add_up_whatever_the_trace(
    work: list[tuple[int, int, int | None]],
) -> None:
    trace = TraceBuilder().step(1, 0, 1000).annotation(LOADER, 100, 300)
    trace.call("cudaStreamSynchronize", 400, 450)
    for start, length, launch in work:
        trace.gpu(GEMM, start, start + length, launch=launch)
    with tempfile.TemporaryDirectory() as folder:
        timeline = trace.timeline(Path(folder))
        idle = look_at_host(timeline).idle
    assert idle.total_ns == timeline.window.length - timeline.sets.busy.total
    assert min(idle.data_ns, idle.sync_ns, idle.cpu_ns, idle.gpu_ns, idle.unknown_ns) >= 0


def loop(batch: int, interval: int) -> TraceBuilder:
    """Eight micro-batches; the one worker begins a batch when it is asked for."""
    trace = TraceBuilder().step(1, 0, 9 * interval).gpu(GEMM, 10, 20, launch=1)
    ready = 0
    for number in range(8):
        at = number * interval + 1000
        trace.annotation(LOADER, at, at + 100)
        ready = max(ready, at + 100) + batch
        trace.call("cudaPointerGetAttributes", ready, ready + 10, tid=PIN)
    return trace


def test_a_loader_that_keeps_up_by_a_hair_is_found(tmp_path: Path) -> None:
    supply = look_at_host(loop(60 * MS, 70 * MS).timeline(tmp_path)).loader_supply
    assert supply == LoaderSupply(8, 60 * MS, 70 * MS, 60 / 70)


def test_a_fast_loader_has_reserve(tmp_path: Path) -> None:
    supply = look_at_host(loop(5 * MS, 70 * MS).timeline(tmp_path)).loader_supply
    assert supply is not None
    assert supply.use == 5 / 70


def test_without_the_pin_memory_thread_nothing_is_said_about_supply(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 1000).gpu(GEMM, 10, 20, launch=1).annotation(LOADER, 0, 5)
    assert look_at_host(trace.timeline(tmp_path)).loader_supply is None


def statistics(trace: TraceBuilder, folder: Path) -> LaunchStatistics:
    timeline = trace.timeline(folder)
    return launch_statistics(
        timeline.activity,
        timeline.launches,
        timeline.window,
        timeline.devices.served_elsewhere,
    )


def test_launches_their_delays_and_the_queue(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 100)
    trace.gpu(GEMM, 10, 30, launch=0).gpu(GEMM, 30, 50, launch=10).gpu(GEMM, 60, 70, launch=58)
    # A call that waits is no launch; a kernel from before the trace has none.
    trace.call("cudaStreamSynchronize", 60, 70, args={"correlation": 99}).gpu(GEMM, 80, 90)
    assert statistics(trace, tmp_path) == LaunchStatistics(
        launches=3,
        kernel_launches=3,
        without_kernel=0,
        captured=0,
        captured_steps=(),
        work_without_launch=1,
        work_without_link=0,
        delay_median_ns=10,
        delay_p90_ns=20,
        delay_max_ns=20,
        negative_delays=0,
        negative_delay_ns=0,
        clock_offset_ns=None,
        # [0, 30), [10, 50) and [58, 70), each from its launch to its end.
        depth_mean=0.82,
        depth_max=2,
        calls_ns=6,
    )


def test_a_kernel_that_begins_before_its_launch_has_no_negative_delay(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 200).gpu(GEMM, 95, 110, launch=100)
    found = statistics(trace, tmp_path)
    assert (found.delay_median_ns, found.negative_delays) == (0, 1)


def test_launches_without_kernels_make_utilisation_unknown(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 100).gpu(GEMM, 10, 20, launch=1)
    for at in range(5):
        trace.call("cudaLaunchKernel", 30 + at, 31 + at, args={"correlation": 50 + at})
    found = statistics(trace, tmp_path)
    assert (found.kernel_launches, found.without_kernel) == (6, 5)
    result = analyse_rank(tmp_path / "rank-0.json").result
    assert result.breakdown is None
    assert result.unknown == (
        "5 of 6 launches have no kernel in the trace: activity was dropped, so the trace "
        "does not say what the GPU did."
    )


def test_a_python_function_s_own_time_is_without_what_it_calls(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 100 * MS).gpu(GEMM, 10, 20, launch=1)
    trace.slice("python_function", "train.py(7): train_step", 0, 24 * MS)
    trace.slice("python_function", "log.py(3): log_metrics", 5 * MS, 12 * MS)
    trace.slice("python_function", "log.py(9): too_short", 6 * MS, MS // 10 - 1)
    trace.op("a", 3 * MS, 7 * MS).op("b", 13 * MS, 14 * MS).op("c", 19 * MS, 21 * MS)
    timeline = trace.timeline(tmp_path)
    assert timeline.activity.python_functions == 3
    # 24 - 12 - [3, 5) - [19, 21) - the launch, and 12 - [5, 7) - [13, 14).
    assert look_at_host(timeline).python == (
        PythonRow("log.py(3): log_metrics", 1, 9 * MS),
        PythonRow("train.py(7): train_step", 1, 8 * MS - 2),
    )
