# SPDX-License-Identifier: Apache-2.0
"""Rules by hand: each fires on its own number, and on nothing else."""

from __future__ import annotations

from pathlib import Path

from busy_rank import MS, busy, found, one_rank
from trace_builder import GEMM, NCCL, TraceBuilder, collective_args

from megatron.torch_trace.analysis.results.analysis import Finding
from megatron.torch_trace.analysis.run.analyse import analyze


def test_a_good_trace_has_no_finding(tmp_path: Path) -> None:
    assert one_rank(tmp_path, busy()) == {}


def test_exposed_tensor_parallel_communication_names_its_share_and_megatron_s_flags(
    tmp_path: Path,
) -> None:
    trace = busy().step(2, MS, 2 * MS)
    trace.collective(MS, MS + 300_000, dimension="tp", launch=MS - 100_000)
    trace.gpu(GEMM, MS + 300_000, 2 * MS, launch=MS - 90_000)
    finding = one_rank(tmp_path, trace)["exposed_communication_tp"]
    assert finding.severity == "high"
    assert finding.title == (
        "Tensor-parallel communication is exposed for 15 % of the window (rank 0)."
    )
    assert finding.evidence["exposed_ns"] == {0: 300_000}
    assert "--sequence-parallel" in finding.advice
    assert "--tp-comm-overlap" in finding.advice


def test_data_parallel_advice_depends_on_the_flags_that_are_on_already(tmp_path: Path) -> None:
    def finding(argv: list[str], name: str) -> Finding:
        trace = busy(own={"argv": argv}).step(2, MS, 2 * MS)
        trace.collective(MS, MS + 300_000, dimension="dp", launch=MS - 100_000)
        trace.gpu(GEMM, MS + 300_000, 2 * MS, launch=MS - 90_000)
        return one_rank(tmp_path / name, trace)["exposed_communication_dp"]

    assert "--overlap-grad-reduce" in finding([], "off").advice
    assert "--ddp-bucket-size" in finding(["--overlap-grad-reduce"], "on").advice


def test_a_gpu_that_waits_for_launches_is_launch_bound(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, MS)
    for start in range(0, MS, 10_000):
        trace.gpu(GEMM, start + 5_000, start + 9_000, launch=start + 4_500)
    finding = one_rank(tmp_path, trace)["launch_bound"]
    assert finding.severity == "high"
    assert "idle for 55 % of the window because the CPU" in finding.title
    assert "--cuda-graph-impl" in finding.advice


def test_waiting_in_the_data_loader_is_its_own_finding(tmp_path: Path) -> None:
    trace = busy().step(2, MS, 2 * MS)
    trace.annotation(
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", MS, MS + 400_000
    )
    trace.gpu(GEMM, MS + 401_000, 2 * MS, launch=MS + 400_500)
    findings = one_rank(tmp_path, trace)
    assert findings["data_loader"].severity == "high"
    assert findings["data_loader"].title == (
        "On rank 0 the training loop spends 20 % of the iteration waiting for the data loader, "
        "0.4 ms for a batch. The GPU is idle for 100 % of that time."
    )
    assert "launch_bound" not in findings


def test_a_loader_that_the_gpu_does_not_notice_is_of_low_severity(tmp_path: Path) -> None:
    trace = busy()
    trace.annotation(
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 300_000, 700_000
    )
    finding = one_rank(tmp_path, trace)["data_loader"]
    assert (finding.severity, finding.evidence["share"]) == ("low", 0.4)
    assert finding.title.endswith("The GPU is idle for 0.1 % of that time.")


def test_missing_kernels_are_said_and_no_percentage_is(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, MS)
    for at in range(20):
        trace.call("cudaLaunchKernel", at, at + 1, args={"correlation": 1000 + at})
    analysis = analyze(trace.write(tmp_path / "rank-0.json"))
    finding = found(analysis)["missing_gpu_events"]
    assert finding.title == ("Utilisation is unknown on rank 0: 20 of 20 launches have no kernel.")
    assert analysis.ranks[0].breakdown is None
    assert [f.code for f in analysis.findings] == ["missing_gpu_events"]


def test_a_training_on_the_cpu_misses_no_gpu(tmp_path: Path) -> None:
    trace = TraceBuilder(own={"rank": 0, "device": "cpu"}).step(1, 0, MS)
    trace.op("aten::mm", 10, 20)
    analysis = analyze(trace.write(tmp_path / "rank-0.json"))
    assert [f.title for f in analysis.findings] == [
        "Training ran on the CPU, so all times are times of the CPU."
    ]


def test_synchronisation_names_the_call_and_its_caller(tmp_path: Path) -> None:
    trace = busy().step(2, MS, 2 * MS).op("aten::item", MS, MS + 5_000)
    trace.call("cudaStreamSynchronize", MS + 100, MS + 290_000)
    trace.gpu(GEMM, MS + 300_000, 2 * MS, launch=MS + 299_000)
    finding = one_rank(tmp_path, trace)["synchronisation"]
    assert finding.title == (
        "The GPU is idle for 14 % of the window because the CPU waits until the GPU has nothing "
        "left to run (rank 0). The CPU waits longest in cudaStreamSynchronize (in aten::item): 0.5 "
        "times and 0.14 ms in each iteration."
    )
    assert finding.evidence["syncs"] == [
        {"call": "cudaStreamSynchronize", "caller": "aten::item", "calls": 1, "time_ns": 289_900}
    ]


def test_barriers_of_timers_are_reported_with_the_level_that_makes_them(tmp_path: Path) -> None:
    argv = ["pretrain_gpt.py", "--timing-log-level", "2"]
    trace = busy(own={"argv": argv})
    trace.gpu(NCCL, 985_000, 986_000, launch=900_000, args=collective_args("barrier", "default"))
    finding = one_rank(tmp_path, trace)["barriers"]
    assert finding.title.startswith(
        "1 barrier in each iteration takes 0.1 % of the iteration (rank 0)"
    )
    assert "--timing-log-level 2" in finding.title
    assert "--no-barrier-with-level-1-timing" in finding.advice


def test_conversions(tmp_path: Path) -> None:
    trace = busy().step(2, MS, 2 * MS).op("aten::_to_copy", MS, MS + 1000)
    trace.gpu("unrolled_elementwise_kernel", MS + 10, MS + 200_000, launch=MS + 5)
    trace.gpu(GEMM, MS + 200_000, 2 * MS, launch=MS + 2000)
    assert "Conversions by aten::_to_copy take 10 %" in (
        one_rank(tmp_path, trace)["dtype_casts"].title
    )


def test_the_profiler_s_own_overhead(tmp_path: Path) -> None:
    trace = busy().slice("overhead", "Activity Buffer Request", 100, 100_000, pid=-1, tid=0)
    finding = one_rank(tmp_path, trace)["profiler_overhead"]
    assert "held up the CPU for 10 % of the window" in finding.title


def test_a_gpu_that_lags_behind(tmp_path: Path) -> None:
    trace = busy()
    for number in range(10):
        trace.gpu(GEMM, number * 1000, number * 1000 + 900)
    finding = one_rank(tmp_path, trace)["launched_before_window"]
    assert finding.evidence["work_without_launch"] == {0: 10}


def late_rank(folder: Path, *, slow: str) -> dict[str, Finding]:
    """Three ranks; rank 1 comes 200 us late to each of four all-reduces because of `slow`."""
    for rank in range(3):
        trace = TraceBuilder(rank, 3).step(1, 0, 4 * MS)
        for number in range(4):
            start = number * MS
            late = rank == 1
            own = 700_000 if not late or slow == "cpu" else 900_000
            launch = start + (200_000 if late and slow == "cpu" else 0)
            trace.gpu(GEMM, launch + 100, launch + own, launch=launch)
            arrives = start + (900_000 if late else 700_000)
            trace.collective(arrives + 100, start + 950_000, size=3, launch=launch + 50)
        trace.write(folder / f"rank-{rank}.json")
    return found(analyze(folder))


def test_a_straggler_whose_cpu_is_late(tmp_path: Path) -> None:
    finding = late_rank(tmp_path, slow="cpu")["straggler"]
    assert finding.severity == "high"
    assert finding.title == (
        "Rank 1 arrives last in 100 % of the data-parallel all-reduces. Each of the other ranks "
        "waits 0.8 ms for rank 1, 20 % of the window. On rank 1 the GPU waits 0.8 ms longer for "
        "the CPU than on the other ranks."
    )
    assert finding.evidence["last_arrivals"] == 4


def test_a_straggler_that_computes_longer(tmp_path: Path) -> None:
    finding = late_rank(tmp_path, slow="gpu")["straggler"]
    assert "Rank 1 computes 0.8 ms longer than the other ranks." in finding.title
    assert "power limit" in finding.advice


def test_waiting_beside_compute_loses_nothing(tmp_path: Path) -> None:
    # Rank 1 enters each all-reduce 0.8 ms late; rank 0 computes beside it but for the last 0.1 ms.
    for rank in range(2):
        trace = TraceBuilder(rank, 2).step(1, 0, 4 * MS)
        for number in range(4):
            start = number * MS
            trace.gpu(GEMM, start, start + 850_000, launch=start)
            begin = start + (850_000 if rank else 50_000)
            trace.collective(begin, start + 950_000, launch=start + 10)
        trace.write(tmp_path / f"rank-{rank}.json")
    finding = found(analyze(tmp_path))["straggler"]
    assert finding.title == (
        "Rank 1 arrives last in 100 % of the data-parallel all-reduces. Rank 0 waits 3.2 ms for "
        "rank 1; for at most 0.4 ms of that, 10 % of the window, it computes nothing."
    )
    assert (finding.severity, finding.evidence["lost_ns"]) == ("medium", 400_000)


def test_waiting_is_told_from_transfer(tmp_path: Path) -> None:
    finding = late_rank(tmp_path, slow="gpu")["exposed_communication_dp"]
    assert "of that communication is waiting for other ranks" in finding.title
    assert finding.advice.startswith(
        "Find out why rank 1 arrives late (last in 100 % of the data-parallel all-reduces)"
    )


def test_without_traces_of_the_others_nobody_knows_what_is_waiting(tmp_path: Path) -> None:
    def title(world_size: int, dimension: str) -> str:
        trace = TraceBuilder(0, world_size).step(1, 0, MS).gpu(GEMM, 0, 600_000, launch=0)
        trace.collective(600_000, MS, dimension=dimension, launch=10)
        findings = one_rank(tmp_path / f"{world_size}{dimension}", trace)
        return findings[f"exposed_communication_{dimension}"].title

    untold = "only traces of the other ranks show how much of that is waiting."
    assert title(2, "tp").endswith(untold)
    assert not title(1, "tp").endswith(untold)
    assert not title(2, "pp").endswith(untold)


def test_every_finding_has_a_number_advice_of_a_sentence_and_a_known_severity(
    tmp_path: Path,
) -> None:
    for finding in late_rank(tmp_path, slow="cpu").values():
        assert any(character.isdigit() for character in finding.title)
        assert finding.evidence
        assert finding.advice.endswith(".")
        assert finding.severity in ("high", "medium", "low", "info")


def test_recompilations_during_the_window_name_the_worst_rank(tmp_path: Path) -> None:
    none = {"recompiles": 0, "graph_breaks": 0, "recompile_limit_hits": 0}
    counts = [none | {"recompiles": 1}, none | {"recompiles": 3, "graph_breaks": 2}, none]
    for rank, compiled in enumerate(counts):
        busy(rank=rank, own={"compile": compiled}).write(tmp_path / f"rank-{rank}.json")
    finding = found(analyze(tmp_path))["recompilations"]
    assert finding.title == (
        "torch.compile was at work within the window: 3 recompilations, 2 graph breaks (rank 1, "
        "the most of 2 ranks)."
    )
    assert finding.severity == "medium"
    assert finding.evidence["recompiles"] == {0: 1, 1: 3}
    limit = busy(own={"compile": none | {"recompile_limit_hits": 1}})
    assert one_rank(tmp_path / "limit", limit)["recompilations"].severity == "high"


def test_a_fused_kernel_that_refused_its_inputs_is_named(tmp_path: Path) -> None:
    finding = one_rank(tmp_path, busy(own={"compile": {"fused_kernels_refused": 1}}))
    assert list(finding) == ["fused_kernels_refused"]
    assert finding["fused_kernels_refused"].evidence == {"fused_kernels_refused": {0: 1}}
