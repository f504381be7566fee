# SPDX-License-Identifier: Apache-2.0
"""What people ask in public trackers about slow trainings, and what a finding answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_builder import GEMM, TraceBuilder

from megatron import torch_trace
from megatron.torch_trace.analysis.results.analysis import Finding

US, MS = 1_000, 1_000_000
OVERLAP = ("--overlap-grad-reduce", "--use-distributed-optimizer", "--overlap-param-gather")


def trace(rank: int = 0, world_size: int = 1, *argv: str) -> TraceBuilder:
    own = {"argv": ["pretrain_gpt.py", "--micro-batch-size", "1", *argv]}
    return TraceBuilder(rank, world_size, own=own)


def findings(folder: Path, *traces: TraceBuilder, gains: bool = False) -> dict[str, Finding]:
    for rank, one in enumerate(traces):
        one.write(folder / f"rank-{rank}.json")
    analysis = torch_trace.analyze(folder, gains=gains)
    return {finding.code: finding for finding in analysis.findings}


# Why do --overlap-grad-reduce and --overlap-param-gather overlap nothing?


def reducing(
    rank: int, *, beside: int = 0, also: str = "dp", argv: tuple[str, ...]
) -> TraceBuilder:
    """Products of 6 ms, each before a reduce-scatter of 4 ms, `beside` ns of it beside them."""
    one = trace(rank, 2, *argv).step(3, 0, 100 * MS)
    for number in range(9):
        at = (1 + 11 * number) * MS
        one.gpu(GEMM, at, at + 6 * MS, launch=at - 500 * US)
        one.collective(
            at + 6 * MS - beside,
            at + 10 * MS - beside,
            launch=at - 400 * US,
            name="reduce_scatter",
            nelems=100_000_000,
            seq=number + 1,
        )
    return one.collective(99 * MS, 99 * MS + 10 * US, dimension=also, seq=99)


def test_overlap_that_is_on_and_does_nothing_is_not_called_overlapped(tmp_path: Path) -> None:
    found = findings(tmp_path, *(reducing(rank, argv=OVERLAP) for rank in range(2)))
    assert found["exposed_communication_dp"].advice == (
        "Find out why nothing overlaps, although the overlap is on. If "
        "`CUDA_DEVICE_MAX_CONNECTIONS` is 1, unset it: with 1, kernels start in the order of their "
        "launch, and only tensor and context parallelism need that. If one bucket holds all "
        "gradients, try smaller buckets (`--ddp-bucket-size`)."
    )


def test_what_tensor_parallelism_needs_is_not_advised_away(tmp_path: Path) -> None:
    ranks = (reducing(rank, argv=OVERLAP, also="tp") for rank in range(2))
    advice = findings(tmp_path, *ranks)["exposed_communication_dp"].advice
    assert "which tensor and context parallelism need before Blackwell" in advice
    assert "unset" not in advice


def test_overlap_that_works_is_given_more_to_overlap_with(tmp_path: Path) -> None:
    ranks = (reducing(rank, argv=OVERLAP, beside=2 * MS) for rank in range(2))
    advice = findings(tmp_path, *ranks)["exposed_communication_dp"].advice
    assert advice.startswith("Give the communication more compute to overlap with")
    assert "overlapped already" in advice


# Is it the network, or do ranks wait?


def transfers(rank: int, world_size: int, *, gigabytes: float, late: int = 0) -> TraceBuilder:
    """One all-reduce of so many GB that takes 400 ms, in which rank 1 arrives `late` ns later."""
    one = trace(rank, world_size).step(3, 0, 500 * MS)
    one.gpu(GEMM, 1 * MS, 50 * MS, launch=500 * US)
    start = 50 * MS + late * (rank == 1)
    elements = round(gigabytes * 5e8)
    one.collective(start, 450 * MS, nelems=elements, size=world_size, launch=600 * US, seq=1)
    return one.gpu(GEMM, 451 * MS, 499 * MS, launch=450 * MS)


def test_a_link_that_is_slower_than_a_card_is_told_from_waiting(tmp_path: Path) -> None:
    found = findings(tmp_path, *(transfers(rank, 2, gigabytes=1) for rank in range(2)))
    finding = found["exposed_communication_dp"]
    assert finding.title.endswith(
        "0 % of that communication is waiting for other ranks. The data-parallel all-reduces of "
        "1 GB move 2.5 GB/s (busbw), less than one network card of 100 Gb/s carries."
    )
    assert finding.advice.startswith("Find out which way NCCL takes (`NCCL_DEBUG=INFO`:")
    assert finding.evidence["busbw_gbps"] == 2.5


def test_ranks_without_a_trace_may_be_what_the_others_wait_for(tmp_path: Path) -> None:
    found = findings(tmp_path, *(transfers(rank, 4, gigabytes=1) for rank in range(2)))
    title = found["exposed_communication_dp"].title
    assert title.endswith("carries, if no rank without a trace arrives late.")


@pytest.mark.parametrize(
    ("gigabytes", "late"),
    [
        (8.0, 0),  # 20 GB/s
        (0.015, 0),  # a call of 15 MB tells its latency
        (1.0, 395 * MS),  # 200 GB/s, once both are there
    ],
)
def test_a_link_is_slow_by_large_calls_without_their_waiting(
    tmp_path: Path, gigabytes: float, late: int
) -> None:
    ranks = (transfers(rank, 2, gigabytes=gigabytes, late=late) for rank in range(2))
    finding = findings(tmp_path, *ranks)["exposed_communication_dp"]
    assert "busbw" not in finding.title
    assert "NCCL_DEBUG" not in finding.advice
    assert "busbw_gbps" not in finding.evidence


# One NCCL kernel takes seconds: who is late?


def test_few_collectives_name_the_late_rank_too(tmp_path: Path) -> None:
    ranks = (transfers(rank, 2, gigabytes=1, late=300 * MS) for rank in range(2))
    found = findings(tmp_path, *ranks)
    assert "straggler" not in found
    assert found["exposed_communication_dp"].advice.startswith(
        "Find out why rank 1 arrives late (last in 100 % of the data-parallel all-reduces)"
    )


def test_a_slow_gpu_alone_is_not_said_to_have_company(tmp_path: Path) -> None:
    ranks = []
    for rank in range(3):
        one, at = trace(rank, 3).step(3, 0, 100 * MS), 2 * MS
        for number in range(8):
            end = at + (9 if rank == 1 else 5) * MS
            one.gpu(GEMM, at, end, launch=(1 + number) * 20 * US)
            at = end
        ranks.append(one.collective(at, 90 * MS, size=3, launch=900 * US, seq=1))
    finding = findings(tmp_path, *ranks, gains=True)["straggler"]
    assert finding.title.startswith("In an iteration, rank 1's GPU takes 32 ms longer")
    assert "other ranks" not in finding.title


# Do pauses of Python's garbage collector make ranks late in turn?


def pausing(rank: int, *argv: str) -> TraceBuilder:
    """Two ranks that launch nothing for 50 ms in turn."""
    one = trace(rank, 2, *argv)
    for number in range(4):
        start = 100 * number * MS
        at = start + (51 if number % 2 == rank else 1) * MS
        one.step(number + 3, start, start + 99 * MS)
        one.gpu(GEMM, at, at + 20 * MS, launch=at - 100 * US)
        one.collective(at + 20 * MS, start + 75 * MS, launch=at - 50 * US, seq=number + 1)
    return one


def test_ranks_that_stop_in_turn_lead_to_the_garbage_collector(tmp_path: Path) -> None:
    found = findings(tmp_path, *(pausing(rank) for rank in range(2)))
    waiting, idle = found["exposed_communication_dp"].advice, found["launch_bound"].advice
    assert "Python code, Python's garbage collector (`--manual-gc`))" in waiting
    assert "checkpoints, Python's garbage collector (`--manual-gc`), waiting for a file" in idle


def test_a_collector_that_megatron_runs_itself_is_not_suspected(tmp_path: Path) -> None:
    found = findings(tmp_path, *(pausing(rank, "--manual-gc") for rank in range(2)))
    assert all("collector" not in finding.advice for finding in found.values())
    assert "logging, checkpoints, waiting for a file" in found["launch_bound"].advice


# What do cudaMalloc retries cost?


@pytest.mark.parametrize("call", ["cudaFree", "cudaMalloc", "hipFree", "cuMemUnmap"])
def test_an_allocator_that_asks_the_gpu_is_led_to_its_memory(tmp_path: Path, call: str) -> None:
    one = trace().step(3, 0, 20 * MS).gpu(GEMM, 1 * MS, 5 * MS, launch=500 * US)
    one.call(call, 5 * MS, 9 * MS).call(call, 9 * MS, 14 * MS)
    finding = findings(tmp_path, one.gpu(GEMM, 15 * MS, 20 * MS, launch=14_100 * US))[
        "launch_bound"
    ]
    assert f"is inside {call}: 2 calls of 4.5 ms on average" in finding.title
    assert finding.advice.startswith(f"Find out why torch's allocator calls {call} while training")
    assert "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`" in finding.advice
    assert "`torch.cuda.empty_cache()` (`--empty-unused-memory-level`)" in finding.advice


# How much does recomputation cost?


def recomputing(*argv: str, share: int = 20) -> TraceBuilder:
    """A layer of 20 ms that is run again for `share` ms of 100 ms, and a backward pass."""
    one, at = trace(0, 1, *argv).step(3, 0, 100 * MS), 1 * MS
    for kind, length in (("", 20), (" (recompute)", share), (" (backward)", 40)):
        one.annotation(f"decoder.layers.0: TransformerLayer{kind}", at - 200 * US, at)
        one.gpu(GEMM, at, at + length * MS, launch=at - 100 * US)
        at += length * MS
    return one


def test_recomputation_is_a_finding_with_its_share(tmp_path: Path) -> None:
    finding = findings(tmp_path, recomputing("--recompute-granularity", "full"))["recomputation"]
    assert finding.title == (
        "Recomputation of activations takes 20 % of the window (rank 0), most of that time in "
        "TransformerLayer."
    )
    assert (finding.severity, finding.evidence["time_ns"]) == ("high", {0: 20 * MS})
    assert finding.advice.startswith(
        "Recompute only the attention, or fewer layers (`--recompute-granularity selective`"
    )


def test_selective_recomputation_is_not_advised_again(tmp_path: Path) -> None:
    found = findings(tmp_path, recomputing("--recompute-granularity", "selective", share=10))
    assert found["recomputation"].advice.startswith(
        "Recompute fewer kinds of modules (`--recompute-modules`), if memory is left"
    )


def test_little_recomputation_is_none(tmp_path: Path) -> None:
    assert "recomputation" not in findings(tmp_path, recomputing(share=4))


# Why is MFU low although the GPU is busy?


@pytest.mark.parametrize(
    ("kernel", "is_slow"),
    [
        ("ampere_sgemm_128x64_nn", True),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(Params)", True),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_ffma", True),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4", False),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_16x6_nt_align4>(P)", False),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", False),
        (GEMM, False),
    ],
)
def test_products_outside_of_the_tensor_cores_are_found_by_their_names(
    tmp_path: Path, kernel: str, is_slow: bool
) -> None:
    one = trace().step(3, 0, 100 * MS).gpu(kernel, 1 * MS, 99 * MS, launch=500 * US)
    found = findings(tmp_path, one).get("full_precision_products")
    assert (found is not None) == is_slow
    if found is not None:
        assert found.title.startswith("Matrix products in fp32 take 98 % of the window (rank 0)")
        assert (found.severity, found.evidence["name"]) == ("high", kernel)
        assert "`--bf16`" in found.advice


# What copies to the host?


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "Pin the host's memory"),
        ("Memcpy DtoH (Device -> Pageable)", "Find out what copies to the host (a checkpoint"),
        ("Memcpy DtoD (Device -> Device)", "Look at the operators that copy on the device"),
    ],
)
def test_the_advice_about_copies_follows_their_direction(
    tmp_path: Path, name: str, first: str
) -> None:
    one = trace().step(3, 0, 100 * MS).gpu(GEMM, 1 * MS, 50 * MS, launch=500 * US)
    copy = {"cat": "gpu_memcpy", "call": "cudaMemcpyAsync", "launch": 600 * US}
    one.gpu(name, 50 * MS, 70 * MS, **copy).gpu(GEMM, 70 * MS, 100 * MS, launch=700 * US)
    assert findings(tmp_path, one)["memory_copies"].advice.startswith(first)


# Which rank is slow in a mixture of experts?


def test_a_rank_with_more_tokens_leads_to_the_balance_of_experts(tmp_path: Path) -> None:
    ranks = []
    for rank in range(4):
        one, at = trace(rank, 4).step(3, 0, 100 * MS), 1 * MS
        for number in range(4):
            end = at + (15 if rank == 3 else 5) * MS
            one.gpu(GEMM, at, end, launch=(1 + number) * 40 * US)
            seq = {"seq": number + 1, "size": 4, "launch": (1 + number) * 40 * US + 20 * US}
            one.collective(end, at + 20 * MS, dimension="ep", name="all_to_allv", **seq)
            at += 20 * MS
        ranks.append(one)
    finding = findings(tmp_path, *ranks)["straggler"]
    assert finding.evidence["rank"] == 3
    assert finding.advice.startswith(
        "See whether the experts of rank 3 are given more tokens than those of the other ranks, "
        "and balance them (`--moe-aux-loss-coeff`, `--moe-expert-capacity-factor`)"
    )
