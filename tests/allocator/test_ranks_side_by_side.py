# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  (a line that users read stands on one line)
"""Memory of several ranks side by side: coordinates, stages, what is uneven, what is unused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import invoked
from snapshot_builder import GIB, MIB, SnapshotBuilder
from trace_builder import GEMM, TraceBuilder

from megatron import torch_trace

FORWARD = ("mlp.py:3 forward", "transformer_layer.py:9 forward")
ADAM = ("/site/torch/optim/adam.py:178 _init_group", "core/optimizer/optimizer.py:3 step")


def run_folder(folder: Path, peaks: dict[int, int], *, pp: dict[int, int] | None = None) -> Path:
    """A window with a snapshot of each rank: 1 GiB of optimizer state, activations up to `peaks`."""
    window = folder / "20261128-101112" / "iter-0000005"
    (window / "artifacts").mkdir(parents=True)
    for rank, peak in peaks.items():
        built = SnapshotBuilder()
        built.alloc(GIB, *ADAM)
        built.free(built.alloc(peak * GIB - GIB, *FORWARD))
        built.write(window / "artifacts" / f"rank-{rank}.memory_snapshot.pickle")
    if pp is not None:
        members = [{"rank": r, "coordinates": {"tp": 0, "pp": s}} for r, s in pp.items()]
        (window.parent / "run.json").write_text(json.dumps({"ranks": members}))
    return window


def found(*arguments: object) -> dict[str, Any]:
    return json.loads(invoked("memory", *arguments, "--json").stdout)  # type: ignore[no-any-return]


def test_stages_come_from_run_json_and_their_imbalance_is_a_finding(tmp_path: Path) -> None:
    window = run_folder(tmp_path, {0: 12, 1: 11, 2: 8, 3: 6}, pp={0: 0, 1: 0, 2: 1, 3: 1})
    document = found(window)
    assert document["stages"] == [
        {
            "stage": 0,
            "ranks": [0, 1],
            "fullest_rank": 0,
            "peak_bytes": 12 * GIB,
            "reserved_bytes": GIB,
            "categories": {"optimizer_state": GIB, "activations": 11 * GIB},
        },
        {
            "stage": 1,
            "ranks": [2, 3],
            "fullest_rank": 2,
            "peak_bytes": 8 * GIB,
            "reserved_bytes": GIB,
            "categories": {"optimizer_state": GIB, "activations": 7 * GIB},
        },
    ]
    uneven, ranks = document["findings"]
    assert (uneven["code"], uneven["title"]) == (
        "memory_imbalance",
        "Stage 0 peaks at 12.9 GB, stage 1 at 8.59 GB; 4.29 GB of the difference are activations.",
    )
    assert uneven["evidence"]["peak_bytes"] == {"0": 12 * GIB, "1": 8 * GIB}
    assert "--decoder-first-pipeline-num-layers" in uneven["advice"]
    assert ranks["code"] == "uneven_ranks"
    assert ranks["title"].startswith("Rank 2 peaks at 8.59 GB, rank 3 of stage 1 at 6.44 GB")


def test_ranks_without_stages_should_be_alike(tmp_path: Path) -> None:
    window = run_folder(tmp_path, {0: 4, 1: 4, 2: 7})
    (finding,) = found(window)["findings"]
    assert (finding["code"], finding["evidence"]["category"]) == ("uneven_ranks", "activations")
    assert finding["evidence"]["peak_bytes"] == {"2": 7 * GIB, "0": 4 * GIB, "1": 4 * GIB}


def test_even_stages_have_no_finding(tmp_path: Path) -> None:
    assert found(run_folder(tmp_path, {0: 8, 1: 8}, pp={0: 0, 1: 1}))["findings"] == []


def test_what_the_gpu_has_comes_from_the_trace_beside(tmp_path: Path) -> None:
    window = run_folder(tmp_path, {0: 4})
    trace = TraceBuilder()
    trace.entries["deviceProperties"] = [{"id": 0, "name": "NVIDIA X", "totalGlobalMem": 8 * GIB}]
    trace.write(window / "rank-0.pt.trace.json")
    document = found(window)
    assert document["capacity_bytes"] == 8 * GIB
    (finding,) = document["findings"]
    assert finding["code"] == "unused_headroom"
    assert finding["title"] == (
        "Torch had at most 4.29 GB of the GPU's 8.59 GB: 4.29 GB (50 %) are left."
    )


def test_the_user_may_say_what_the_gpu_has(tmp_path: Path) -> None:
    window = run_folder(tmp_path, {0: 4, 1: 4})
    document = found(window, "--gpu-memory", 20)
    assert [one["capacity_bytes"] for one in document["ranks"]] == [20_000_000_000] * 2
    assert [one["code"] for one in document["findings"]] == ["unused_headroom"]
    assert found(window, "--gpu-memory", 4.5)["findings"] == []


def test_a_trial_that_uses_less_than_a_tenth_of_the_gpu_has_no_headroom_to_speak_of(
    tmp_path: Path,
) -> None:
    window = run_folder(tmp_path, {0: 4})
    assert found(window, "--gpu-memory", 43)["findings"] == []
    assert len(found(window, "--gpu-memory", 42)["findings"]) == 1


USUAL = {"micro_batch_size": 2, "global_batch_size": 8, "data_parallel_size": 2}


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (USUAL, "Use them: a `--micro-batch-size` larger than 2;"),
        (
            USUAL | {"recompute_granularity": "full", "pipeline_model_parallel_size": 4},
            "Use them: a `--micro-batch-size` larger than 2, less recomputation "
            "(`--recompute-granularity full` now), fewer stages than 4;",
        ),
        (
            USUAL | {"micro_batch_size": 4, "tensor_model_parallel_size": 2},
            "Use them: `--tensor-model-parallel-size` less than 2;",
        ),
        (USUAL | {"micro_batch_size": 4}, None),
    ],
)
def test_unused_memory_is_a_finding_where_the_run_has_a_way_to_use_it(
    tmp_path: Path, arguments: dict[str, Any], advice: str | None
) -> None:
    window = run_folder(tmp_path, {0: 4}, pp={0: 0})
    run = {"arguments": arguments, "ranks": [{"rank": 0, "coordinates": {"pp": 0}}]}
    (window.parent / "run.json").write_text(json.dumps(run))
    findings = found(window, "--gpu-memory", 20)["findings"]
    assert [one["advice"].partition(" `torch-trace")[0] for one in findings] == (
        [advice] if advice else []
    )


def traces(window: Path, ranks: int) -> None:
    for rank in range(ranks):
        trace = TraceBuilder(rank, ranks).step(5, 0, 1_000_000).gpu(GEMM, 100_000, 900_000)
        trace.write(window / f"rank-{rank}.pt.trace.json")


def test_findings_of_memory_join_those_of_time(tmp_path: Path) -> None:
    window = run_folder(tmp_path, {0: 12, 1: 8}, pp={0: 0, 1: 1})
    traces(window, 2)
    document = json.loads(invoked("analyze", window, "--json").stdout)
    assert [one["code"] for one in document["findings"]].count("memory_imbalance") == 1
    assert "Stage 0 peaks at 12.9 GB" in invoked("analyze", window).output
    in_python = torch_trace.analyze(window)
    assert [one.code for one in in_python.findings] == [one["code"] for one in document["findings"]]
    document = json.loads(invoked("analyze", window, "--json", "--step", 5).stdout)
    assert "memory_imbalance" not in [one["code"] for one in document["findings"]]
    of_one_step = [one.code for one in torch_trace.analyze(window, step=5).findings]
    assert of_one_step == [one["code"] for one in document["findings"]]


def test_only_the_analysed_ranks_and_what_can_be_read_join_them(tmp_path: Path) -> None:
    window = run_folder(tmp_path, {0: 12, 1: 8}, pp={0: 0, 1: 1})
    traces(window, 2)
    (window / "elsewhere").mkdir()
    (window / "elsewhere" / "rank-0.memory_snapshot.pickle").write_bytes(b"\x80\x04no")
    (window / "artifacts" / "rank-1.memory_snapshot.pickle").write_bytes(b"\x80\x04no")
    document = json.loads(invoked("analyze", window, "--json").stdout)
    assert "memory_imbalance" not in [one["code"] for one in document["findings"]]


def test_a_finding_of_several_ranks_is_said_once(tmp_path: Path) -> None:
    window = run_folder(tmp_path, {})
    for rank in range(3):
        built = SnapshotBuilder()
        built.alloc(10 * MIB, *FORWARD)
        built.free(built.alloc((10 + rank) * MIB, *ADAM), *ADAM)
        built.write(window / "artifacts" / f"rank-{rank}.memory_snapshot.pickle")
    (finding,) = found(window)["findings"]
    assert (finding["code"], finding["evidence"]["ranks"]) == ("optimizer_peak", [0, 1, 2])
    assert finding["title"].endswith("(rank 2, and 2 more)")


def test_stages_are_printed_below_the_ranks(tmp_path: Path) -> None:
    window = run_folder(tmp_path, {0: 12, 1: 8}, pp={0: 0, 1: 1})
    lines = invoked("memory", window).output.splitlines()
    assert [line.split() for line in lines[1:8]] == [
        ["rank", "peak", "reserved", "coordinates", "file"],
        [
            "0",
            "12.9",
            "GB",
            "1.07",
            "GB",
            "tp0",
            "pp0",
            "rank-0.memory_snapshot.pickle",
            "fullest",
        ],
        ["1", "8.59", "GB", "1.07", "GB", "tp0", "pp1", "rank-1.memory_snapshot.pickle"],
        [],
        ["at", "the", "fullest", "rank's", "peak", "optimizer", "state", "activations"],
        ["stage", "0,", "rank", "0", "1.07", "GB", "11.8", "GB"],
        ["stage", "1,", "rank", "1", "1.07", "GB", "7.52", "GB"],
    ]


def test_an_odd_run_json_is_no_reason_to_fail(tmp_path: Path) -> None:
    window = run_folder(tmp_path, {0: 4})
    for text in ("[]", "{", '{"ranks": 7}', '{"ranks": [{"rank": 0, "coordinates": [1]}]}'):
        (window.parent / "run.json").write_text(text)
        assert found(window)["coordinates"] == {}


def test_a_report_has_a_table_of_memory_where_snapshots_lie_beside(tmp_path: Path) -> None:
    window = run_folder(tmp_path, {0: 12, 1: 8}, pp={0: 0, 1: 1})
    traces(window, 2)
    invoked("report", window, "-o", tmp_path / "report.md")
    text = (tmp_path / "report.md").read_text()
    assert "## Memory" in text
    assert "| mlp.py forward 11.8 GB |" in text.split("## Memory")[1]
    assert "memory_imbalance" in text
    invoked("report", window, "-o", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert '<section id="memory"' in page
    assert "No allocator snapshot lies beside the traces" not in page


@pytest.mark.parametrize("loop", ["pytorch", None])
def test_advice_to_a_loop_that_is_not_megatrons_says_whose_its_flags_are(
    tmp_path: Path, loop: str | None
) -> None:
    """Without a word of capture the code that holds memory tells: here it is nobody's."""
    window = run_folder(tmp_path, {0: 4, 1: 4, 2: 7})
    if loop:
        (window.parent / "run.json").write_text(json.dumps({"loop": loop, "arguments": {}}))
    document = found(window, "--gpu-memory", 20)
    advice = {one["code"]: one["advice"] for one in document["findings"]}
    assert "(in Megatron: `--moe-aux-loss-coeff`)" in advice["uneven_ranks"]
    assert advice["unused_headroom"] == (
        "Use them: a larger micro-batch, less recomputation, less sharding of the model."
    )


def test_advice_to_megatrons_loop_has_its_flags(tmp_path: Path) -> None:
    window = run_folder(tmp_path, {0: 4, 1: 4, 2: 7})
    (window.parent / "run.json").write_text(json.dumps({"loop": "megatron"}))
    document = found(window, "--gpu-memory", 20)
    advice = {one["code"]: one["advice"] for one in document["findings"]}
    assert "(`--moe-aux-loss-coeff`)" in advice["uneven_ranks"]
    assert advice["unused_headroom"].startswith("Use them: a larger `--micro-batch-size`, ")
