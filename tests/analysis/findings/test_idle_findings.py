# SPDX-License-Identifier: Apache-2.0
"""What makes the GPU idle is a finding, whatever stands first; advice is in the reader's words."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_builder import GEMM, NCCL, TraceBuilder, collective_args

from megatron.torch_trace.analysis.findings import modules
from megatron.torch_trace.analysis.results.analysis import Finding
from megatron.torch_trace.analysis.run.analyse import analyze

US, MS = 1_000, 1_000_000
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def findings(folder: Path, trace: TraceBuilder) -> dict[str, Finding]:
    analysis = analyze(trace.write(folder / "rank-0.json"))
    return {finding.code: finding for finding in analysis.findings}


def iterations(*, steps: bool) -> TraceBuilder:
    """Four of 1 ms that wait 0.7 ms for the data loader, with ProfilerStep or without."""
    trace = TraceBuilder().gpu(GEMM, -50 * US, 0, launch=-60 * US)
    for number in range(4):
        start = number * MS
        if steps:
            trace.step(number + 3, start, start + 995 * US)
        trace.annotation(LOADER, start + 2 * US, start + 702 * US)
        for at in range(start + 720 * US, start + 960 * US, 60 * US):
            trace.gpu(GEMM, at + 8 * US, at + 48 * US, launch=at)
    return trace


@pytest.mark.parametrize("steps", [True, False])
def test_the_data_loader_is_a_finding_with_steps_and_without(tmp_path: Path, steps: bool) -> None:
    found = findings(tmp_path, iterations(steps=steps))
    finding = found["data_loader"]
    assert next(iter(found)) == "data_loader"
    assert (finding.severity, finding.evidence["calls"]) == ("high", 4)
    assert finding.evidence["idle_ns"] == 2_800 * US
    assert finding.title.startswith("On rank 0 the training loop spends 7")


def test_long_python_after_a_short_synchronisation_is_not_the_synchronisation_s(
    tmp_path: Path,
) -> None:
    trace = TraceBuilder().step(3, 0, MS)
    trace.op("aten::item", 10 * US, 22 * US).call("cudaStreamSynchronize", 11 * US, 19 * US)
    trace.slice("python_function", "mydata.py(12): decode", 30 * US, 700 * US)
    trace.gpu(GEMM, 748 * US, MS, launch=740 * US)
    found = findings(tmp_path, trace)
    assert list(found) == ["launch_bound"]
    assert found["launch_bound"].title == (
        "The GPU is idle for 73 % of the window because the CPU has not launched the next kernel "
        "yet (rank 0). For 96 % of that time the CPU of rank 0 runs mydata.py(12): decode, 1 time, "
        "0.7 ms in all."
    )
    assert found["launch_bound"].advice.startswith("Make mydata.py(12): decode faster")
    assert found["launch_bound"].example is not None


def test_a_launch_call_that_lasts_is_named_and_graphs_are_not_advised(tmp_path: Path) -> None:
    trace = TraceBuilder().step(3, 0, MS)
    for number, start in enumerate((10, 330, 650), start=1):
        own = {"correlation": number}
        trace.call("cudaLaunchKernel", start * US, (start + 290) * US, args=own)
        trace.gpu(GEMM, (start + 292) * US, (start + 312) * US)
    finding = findings(tmp_path, trace)["launch_bound"]
    assert "is inside cudaLaunchKernel: 3 launch calls of 270 us on average" in finding.title
    assert "CUDA_MODULE_LOADING" in finding.advice
    assert "graph" not in finding.advice


def test_allocations_between_launches_are_named(tmp_path: Path) -> None:
    trace = TraceBuilder().step(3, 0, MS).gpu(GEMM, 10 * US, 100 * US, launch=0)
    trace.call("cudaMalloc", 90 * US, 690 * US).gpu(GEMM, 710 * US, MS, launch=700 * US)
    finding = findings(tmp_path, trace)["launch_bound"]
    assert "is inside cudaMalloc: 1 call of 590 us" in finding.title
    assert finding.advice.startswith("Find out why torch's allocator calls cudaMalloc")


def far_apart() -> TraceBuilder:
    """Work of 0.1 ms every 2 ms, launched when it starts."""
    trace = TraceBuilder().step(3, 0, 10 * MS)
    for start in range(0, 10 * MS, 2 * MS):
        trace.gpu(GEMM, start + 5 * US, start + 100 * US, launch=start)
    return trace


def test_long_gaps_without_stacks_are_not_called_launch_bound(tmp_path: Path) -> None:
    finding = findings(tmp_path, far_apart())["launch_bound"]
    assert "is in 5 gaps of 0.5 ms or more (the longest 1.9 ms)" in finding.title
    assert "--torch-profile-with-stack" in finding.advice
    assert "graph" not in finding.advice


def test_the_innermost_function_that_is_in_the_long_gaps_is_named(tmp_path: Path) -> None:
    trace = far_apart().slice("python_function", "train.py(1): main", 0, 10 * MS)
    for start in range(0, 10 * MS, 2 * MS):
        trace.slice("python_function", "log.py(2): log_metrics", start + 200 * US, 1_700 * US)
        for part, at in enumerate((300, 800, 1_300)):
            name = f"log.py({part}): part"
            trace.slice("python_function", name, start + at * US, 450 * US)
    finding = findings(tmp_path, trace)["launch_bound"]
    assert finding.title.endswith(
        "there the CPU does something other than launch work, for 8.5 ms in log.py(2): log_metrics."
    )
    assert finding.advice.startswith("Make log.py(2): log_metrics faster")


def waiting(*, event: bool) -> TraceBuilder:
    """Work that is launched at once, and starts 0.5 ms later."""
    trace = TraceBuilder().step(3, 0, MS).gpu(GEMM, 8 * US, 100 * US, launch=0)
    if event:
        trace.call("cudaStreamWaitEvent", 40 * US, 41 * US)
    return trace.gpu(GEMM, 600 * US, MS, launch=50 * US)


def test_work_that_is_held_up_after_its_launch_is_a_finding(tmp_path: Path) -> None:
    outside = findings(tmp_path / "outside", waiting(event=False))
    assert list(outside) == ["launched_not_started"]
    finding = outside["launched_not_started"]
    assert finding.title == (
        "The GPU is idle for 51 % of the window although the next work is launched already "
        "(rank 0). 98 % of that is in waits of 50 us or more, longer than a launch is on its "
        f"way; on rank 0 {GEMM} waits longest, 500 us."
    )
    assert "another process on the same GPU" in finding.advice
    event = findings(tmp_path / "event", waiting(event=True))["launched_not_started"]
    assert "cudaStreamWaitEvent" in event.advice
    assert event.evidence["held_by_event_ns"] == 500 * US


def test_launches_that_are_on_their_way_all_the_time_are_a_finding_if_nothing_is_more(
    tmp_path: Path,
) -> None:
    trace = TraceBuilder().step(3, 0, MS)
    for start in range(0, MS, 20 * US):
        trace.gpu(GEMM, start + 8 * US, start + 19 * US, launch=start)
    finding = findings(tmp_path, trace)["launched_not_started"]
    assert "50 times, 8 us each (median)" in finding.title
    assert finding.advice.startswith("Launch less")


def test_one_rank_whose_cpu_is_held_up_is_named_where_the_mean_shows_it(tmp_path: Path) -> None:
    for rank in range(3):
        trace = TraceBuilder(rank, 3).step(1, 0, MS)
        trace.gpu(GEMM, (600 if rank == 2 else 10) * US, MS, launch=(590 if rank == 2 else 5) * US)
        trace.write(tmp_path / f"rank-{rank}.json")
    finding = next(f for f in analyze(tmp_path).findings if f.code == "launch_bound")
    assert "(rank 2)" in finding.title
    assert set(finding.evidence["cpu_idle_ns"]) == {2}


def meshed(group: str, *, argv: tuple[str, ...] = ()) -> TraceBuilder:
    own = {"argv": list(argv)} if argv else None
    trace = TraceBuilder(0, 8, own=own).step(1, 0, MS).gpu(GEMM, 5 * US, 600 * US, launch=0)
    args = collective_args("allgather", "dp") | {"Process Group Description": group}
    return trace.gpu(NCCL, 600 * US, MS, launch=10 * US, args=args)


def test_a_group_that_the_trace_names_is_never_called_unknown(tmp_path: Path) -> None:
    known = findings(tmp_path / "known", meshed("mesh_fsdp"))["exposed_communication_dp"]
    assert known.title.startswith("Data-parallel communication is exposed for 40 %")
    odd = findings(tmp_path / "odd", meshed("mesh_zebra"))["exposed_communication_unknown"]
    assert odd.title.startswith("Communication of the process group mesh_zebra is exposed")
    assert odd.advice.startswith("Look in the timeline for what exchanges over this group")
    nameless = findings(tmp_path / "nameless", meshed("undefined"))["exposed_communication_unknown"]
    assert nameless.title.startswith("Communication of an unknown process group is exposed")
    assert "`group_desc`" in nameless.advice


def test_megatron_s_flags_are_examples_to_who_trains_with_something_else(tmp_path: Path) -> None:
    code = "exposed_communication_dp"
    others = findings(tmp_path / "others", meshed("mesh_fsdp", argv=("train.py", "--lr", "1")))
    assert others[code].advice == (
        "Reduce gradients and gather parameters while the GPU computes (in Megatron: "
        "`--overlap-grad-reduce` and, with `--use-distributed-optimizer`, "
        "`--overlap-param-gather`)."
    )
    argv = ("pretrain.py", "--tensor-model-parallel-size", "2")
    assert "(`--overlap-grad-reduce`" in (
        findings(tmp_path / "own", meshed("mesh_fsdp", argv=argv))[code].advice
    )
    group = meshed("DATA_PARALLEL_GROUP_WITH_CP")
    assert "in Megatron" not in findings(tmp_path / "group", group)[code].advice


def test_every_rule_has_a_slug_of_its_own() -> None:
    slugs = [module.SLUG for module in modules()]
    assert len(set(slugs)) == len(slugs) > 10


def in_turn(*, blocking: bool) -> TraceBuilder:
    """60 kernels of 100 us; their calls return when they have ended, or after 5 us."""
    trace = TraceBuilder().step(3, 0, 60 * 180 * US)
    for number in range(60):
        start, own = number * 180 * US, {"correlation": number + 1}
        length = 110 * US if blocking else 5 * US
        trace.call("cudaLaunchKernel", start, start + length, args=own)
        trace.gpu(GEMM, start + 6 * US, start + 106 * US)
    return trace


def test_launches_that_wait_for_their_work_lead_to_the_variable_for_debugging(
    tmp_path: Path,
) -> None:
    found = findings(tmp_path, in_turn(blocking=True))
    assert found["blocking_launches"].title == (
        "Launch calls return only when their work has ended (rank 0): 60 calls of 110 us on "
        "average in each iteration, and never is more than one piece of work launched ahead."
    )
    assert found["blocking_launches"].severity == "high"
    assert found["blocking_launches"].advice.startswith("Unset `CUDA_LAUNCH_BLOCKING`")
    assert found["launch_bound"].cause == "blocking_launches"


def test_a_slow_cpu_does_not_wait_in_its_launches(tmp_path: Path) -> None:
    found = findings(tmp_path, in_turn(blocking=False))
    assert "blocking_launches" not in found
    assert found["launch_bound"].cause is None


def collected(rank: int, time_ns: int, *argv: str, **more: int) -> TraceBuilder:
    """Two iterations of 10 ms that are launch-bound, in which the collector runs for so long."""
    pauses = {"collections": 12, "time_ns": time_ns, "longest_ns": time_ns // 2, **more}
    own = {"argv": ["pretrain_gpt.py", *argv], "garbage_collection": pauses}
    trace = TraceBuilder(rank, 2, own=own)
    for number in range(2):
        start = 10 * number * MS
        trace.step(number + 3, start, start + 9_990 * US)
        trace.gpu(GEMM, start + 4 * MS, start + 9 * MS, launch=start + 3_990 * US)
    return trace


def of_both(folder: Path, *traces: TraceBuilder) -> dict[str, Finding]:
    for rank, one in enumerate(traces):
        one.write(folder / f"rank-{rank}.json")
    return {finding.code: finding for finding in analyze(folder).findings}


def test_the_collector_is_a_finding_of_the_rank_that_it_stops_longest(tmp_path: Path) -> None:
    traces = collected(0, 300 * US, "--micro-batch-size"), collected(1, 1_500 * US)
    finding = of_both(tmp_path, *traces)["garbage_collection"]
    assert finding.title == (
        "Python's garbage collector stops the CPU of rank 1 for 0.75 ms an iteration, 7.5 % of the "
        "window, in 12 collections, the most of 2 ranks; the longest takes 750 us."
    )
    assert (finding.severity, finding.evidence["rank"]) == ("medium", 1)
    assert finding.evidence["time_ns"] == {0: 300 * US, 1: 1_500 * US}
    assert finding.advice.startswith(
        "Collect seldom, and on all ranks in the same iteration, instead of whenever Python does "
        "(`--manual-gc --manual-gc-interval 100`)"
    )


def test_a_collector_that_megatron_runs_too_often_is_told_of_its_interval(tmp_path: Path) -> None:
    found = of_both(tmp_path, collected(0, 300 * US, "--manual-gc", "--manual-gc-interval=5"))
    assert found["garbage_collection"].advice.startswith(
        "Collect less often: this run does so every 5 iterations (`--manual-gc-interval`)."
    )


def test_a_collector_that_takes_next_to_nothing_is_not_suspected(tmp_path: Path) -> None:
    found = of_both(tmp_path, collected(0, 20 * US))
    assert list(found) == ["launch_bound"]
    assert "collector" not in found["launch_bound"].advice


def test_what_capture_did_not_measure_whole_is_unknown(tmp_path: Path) -> None:
    found = of_both(tmp_path, collected(0, 300 * US, longest_ns=-1))
    assert list(found) == ["launch_bound"]
    assert "Python's garbage collector" in found["launch_bound"].advice
