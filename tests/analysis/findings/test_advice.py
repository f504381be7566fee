# SPDX-License-Identifier: Apache-2.0
"""Advice that would end a job, or change nothing, is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trace_builder import GEMM, SENDRECV, TraceBuilder, collective_args

from megatron.torch_trace.analysis.findings.communication.overlap_advice import for_exposed
from megatron.torch_trace.analysis.findings.host.data_loader import for_data_loader
from megatron.torch_trace.analysis.findings.host.launch_bound import for_launches
from megatron.torch_trace.analysis.findings.pipeline.uneven_stages import for_uneven_stages
from megatron.torch_trace.analysis.results.analysis import Finding, RankResult
from megatron.torch_trace.analysis.run.analyse import analyze
from megatron.torch_trace.analysis.timeline.command_line import LAYOUT

MS = 1_000_000


def rank(folder: Path, *argv: str, dimensions: tuple[str, ...] = ("tp",)) -> RankResult:
    """A rank with this command line that communicates in these dimensions, one after the other."""
    trace = TraceBuilder(own={"argv": ["pretrain_gpt.py", *argv]}).step(1, 0, MS)
    for number, dimension in enumerate(dimensions):
        trace.collective(100 * number + 100, 100 * number + 150, dimension=dimension)
    return analyze(trace.write(folder / "rank-0.json")).ranks[0]


@pytest.mark.parametrize(
    ("dimension", "argv", "advised", "not_advised"),
    [
        ("tp", (), "--sequence-parallel", ""),
        ("tp", ("--sequence-parallel",), "--tp-comm-overlap", "--sequence-parallel"),
        ("tp", ("--tp-comm-overlap",), "smaller tensor-parallel size", "--tp-comm-overlap"),
        ("dp", (), "--overlap-grad-reduce", ""),
        ("dp", ("--overlap-grad-reduce",), "--ddp-bucket-size", "--overlap-grad-reduce"),
        (
            "dp",
            ("--overlap-grad-reduce", "--use-distributed-optimizer"),
            "--overlap-param-gather",
            "--overlap-grad-reduce",
        ),
        ("pp", (), "--num-layers-per-virtual-pipeline-stage", ""),
        (
            "pp",
            ("--num-virtual-stages-per-pipeline-rank", "2"),
            "more micro-batches",
            "--num-layers-per-virtual-pipeline-stage",
        ),
        ("ep", ("--moe-token-dispatcher-type=flex",), "--moe-aux-loss-coeff", "flex"),
        (
            "ep",
            ("--overlap-moe-expert-parallel-comm",),
            "--moe-aux-loss-coeff",
            "--overlap-moe-expert-parallel-comm",
        ),
        ("cp", (), "`--cp-comm-type p2p`, core 0.10 on), if they are not", ""),
        ("cp", ("--cp-comm-type", "a2a"), "`--cp-comm-type p2p`, core 0.10 on), or", ""),
        ("cp", ("--cp-comm-type", "p2p"), "longer sequences", "--cp-comm-type"),
        ("cp", ("--cp-comm-type=a2a+p2p",), "longer sequences", "--cp-comm-type"),
    ],
)
def test_what_is_on_already_is_not_advised(
    tmp_path: Path, dimension: str, argv: tuple[str, ...], advised: str, not_advised: str
) -> None:
    text = for_exposed(dimension, [rank(tmp_path, *argv)])
    assert advised in text
    assert not not_advised or not_advised not in text


def test_launches_are_saved_by_what_is_not_on_yet(tmp_path: Path) -> None:
    nothing = for_launches([rank(tmp_path / "nothing")])
    assert "--cuda-graph-impl" in nothing
    assert "--transformer-impl" in nothing
    flags = ("--cuda-graph-impl=local", "--transformer-impl", "transformer_engine")
    everything = for_launches([rank(tmp_path / "everything", *flags)])
    assert "--cuda-graph-impl" not in everything
    assert "--transformer-impl" not in everything
    assert "--micro-batch-size" in everything


def test_a_loader_with_many_workers_is_not_given_fewer(tmp_path: Path) -> None:
    few, many = (
        for_data_loader([rank(tmp_path / workers, "--num-workers", workers)])
        for workers in ("1", "12")
    )
    assert "`--num-workers 8`" in few
    assert "more than its 12 workers (`--num-workers`)" in many


def test_ways_of_moving_layers_that_megatron_refuses_together_are_alternatives(
    tmp_path: Path,
) -> None:
    plain = for_uneven_stages([rank(tmp_path / "plain")])
    assert "`, or instead of them `--account-for-embedding-in-pipeline-split`" in plain
    flags = ("--num-layers-per-virtual-pipeline-stage", "2")
    interleaved = for_uneven_stages([rank(tmp_path / "interleaved", *flags)])
    assert "`--num-virtual-stages-per-pipeline-rank` instead of" in interleaved
    layout = for_uneven_stages([rank(tmp_path / "layout", f"{LAYOUT}=Et|tL")])
    assert layout == "Move layers between stages in `--pipeline-model-parallel-layout`."


def test_a_group_is_unknown_for_one_of_two_reasons(tmp_path: Path) -> None:
    alone = rank(tmp_path / "alone", dimensions=())
    assert "torch 2.4" in for_exposed("unknown", [alone])
    # torch does record groups here: that of work launched before the trace is not in it.
    beside = rank(tmp_path / "beside", dimensions=("dp",))
    assert "--torch-profile-active" in for_exposed("unknown", [beside])


def test_a_group_without_advice_of_its_own_is_not_called_unknown(tmp_path: Path) -> None:
    text = for_exposed("tp-cp", [rank(tmp_path)])
    assert text.startswith("Look in the timeline for what exchanges over this group")


def test_a_pipeline_that_synchronises_is_told_of_interleaving_once(tmp_path: Path) -> None:
    def finding(*argv: str) -> Finding:
        folder = tmp_path / str(len(argv))
        trace = TraceBuilder(0, 2, own={"argv": list(argv)}).step(1, 0, MS)
        trace.gpu(SENDRECV, 100, 200, launch=50, args=collective_args("send", "pp"))
        trace.gpu(GEMM, 200, 300, launch=60)
        trace.call("cudaDeviceSynchronize", 70, 398_000)
        trace.gpu(GEMM, 400_000, 990_000, launch=399_000)
        analysis = analyze(trace.write(folder / "rank-0.json"))
        return next(one for one in analysis.findings if one.code == "synchronisation")

    assert "interleaving" in finding().advice
    flags = ("--num-layers-per-virtual-pipeline-stage", "2")
    assert "--no-check-for-nan-in-loss-and-grad" in finding(*flags).advice


def tensor_parallel(
    folder: Path, *hosts: str | None, device: str = "NVIDIA H200", **more: int
) -> str:
    """Advice for two ranks of one tensor-parallel group, unless `more` tells another place."""
    for number, host in enumerate(hosts):
        at = {"tp": number, "pp": 0, "dp": 0, "cp": 0, "ep": number}
        if number:
            at |= more
        own = {"host": host, "coordinates": at, "argv": ["pretrain_gpt.py"]}
        trace = TraceBuilder(number, 2, device=device, own=own).step(1, 0, MS)
        trace.collective(100, 150, dimension="tp").write(folder / f"rank-{number}.json")
    return for_exposed("tp", analyze(folder).ranks)


def test_a_tensor_parallel_group_on_two_hosts_is_to_be_kept_on_one(tmp_path: Path) -> None:
    assert tensor_parallel(tmp_path, "node1", "node2") == (
        "Keep every tensor-parallel group on one host (`--tensor-model-parallel-size`, at most the "
        "GPUs of a host): ranks of one group are on node1, node2, and the network between hosts is "
        "far slower than NVLink."
    )


@pytest.mark.parametrize(
    ("hosts", "more"),
    [
        (("node1", "node1"), {}),
        (("node1", None), {}),
        (("node1", "node2"), {"dp": 1}),
        (("node1", "node2"), {"device": "NVIDIA GB200"}),
    ],
)
def test_other_groups_and_unknown_hosts_are_no_reason(
    tmp_path: Path, hosts: tuple[str | None, ...], more: dict[str, Any]
) -> None:
    assert "--sequence-parallel" in tensor_parallel(tmp_path, *hosts, **more)
