# SPDX-License-Identifier: Apache-2.0
"""Modules over ranks and stages, and the finding about a stage that has more than the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_builder import GEMM, SENDRECV, TraceBuilder, collective_args

from megatron.torch_trace.analysis.results.analysis import Analysis, Finding
from megatron.torch_trace.analysis.results.stage_work import PartWork, StageWork
from megatron.torch_trace.analysis.run.analyse import analyze

MS = 1_000_000


def stage(
    number: int,
    layers: int,
    *,
    embedding: int = 0,
    output: int = 0,
    rank: int | None = None,
    layer: int = 100,
) -> TraceBuilder:
    """One rank: embedding, layers of 100 ms, output layer, and a loss of the model's own: ms."""
    own = {"coordinates": {"pp": number}}
    trace = TraceBuilder(number if rank is None else rank, 8, own=own).step(1, 0, 2000 * MS)
    trace.annotation("model: GPTModel", 1, 1000)
    parts = [("embedding: LanguageModelEmbedding", embedding)]
    parts += [(f"decoder.layers.{n}: TransformerLayer", layer) for n in range(layers)]
    parts += [("output_layer: ColumnParallelLinear", output)]
    at = 2000
    for nth, (name, time) in enumerate(parts):
        trace.annotation(name, 10 + 20 * nth, 20 + 20 * nth)
        if time:
            trace.gpu(GEMM, at, at + time * MS, launch=15 + 20 * nth)
            at += time * MS
    return trace


def analysis_of(folder: Path, *traces: TraceBuilder) -> Analysis:
    for number, trace in enumerate(traces):
        trace.write(folder / f"rank-{number}.json")
    return analyze(folder)


def imbalance(analysis: Analysis) -> Finding | None:
    return next((one for one in analysis.findings if one.code == "layer_imbalance"), None)


def test_each_stage_has_its_layers_and_what_else_it_computes(tmp_path: Path) -> None:
    first = stage(0, 2, embedding=30).collective(900 * MS, 950 * MS, launch=35)
    second = stage(1, 1, output=70)
    # Launched by the model itself: the loss.
    second.gpu(GEMM, 1200 * MS, 1205 * MS, launch=500)
    found = analysis_of(tmp_path, first, second).stages
    assert [(one.stage, one.ranks, len(one.layers)) for one in found] == [
        (0, (0,), 2),
        (1, (1,), 1),
    ]
    assert [(one.layers_ns, one.embedding_ns, one.other_ns, one.total_ns) for one in found] == [
        (200 * MS, 30 * MS, 0, 230 * MS),
        (100 * MS, 0, 75 * MS, 175 * MS),
    ]
    assert found[0].layers[0] == PartWork(
        "decoder.layers.0", 150.0 * MS, 0.0, 0.0, 50.0 * MS, 50.0 * MS, None
    )
    assert [(one.name, one.work_ns) for one in found[0].classes] == [
        ("GPTModel", 230 * MS),
        ("TransformerLayer", 200 * MS),
        ("LanguageModelEmbedding", 30 * MS),
        ("ColumnParallelLinear", 0),
    ]


def test_ranks_of_a_stage_are_one_mean(tmp_path: Path) -> None:
    analysis = analysis_of(tmp_path, stage(0, 1), stage(0, 1, rank=1, layer=140))
    (found,) = analysis.stages
    assert (found.ranks, found.layers_ns, found.total_ns) == ((0, 1), 120 * MS, 120 * MS)
    assert analysis.to_polars()["stage_layers"].row(0, named=True)["forward_ns"] == 120 * MS


def test_layers_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    (found,) = analysis_of(tmp_path, stage(0, 11, layer=1)).stages
    assert [one.name.rsplit(".", 1)[1] for one in found.layers] == [str(n) for n in range(11)]


def test_layers_of_experts_inside_a_layer_are_none_of_their_own(tmp_path: Path) -> None:
    trace = stage(0, 1)
    trace.annotation("decoder.layers.0.mlp.experts.3: ExpertLayer", 32, 38)
    (found,) = analysis_of(tmp_path, trace).stages
    assert [one.name for one in found.layers] == ["decoder.layers.0"]


def test_a_stage_with_more_layers_holds_the_others(tmp_path: Path) -> None:
    finding = imbalance(analysis_of(tmp_path, stage(0, 3), stage(1, 5)))
    assert finding is not None
    assert finding.title == (
        "Stage 1 has 500 ms of GPU work in an iteration, 100 ms more than the mean of 2 stages. "
        "The other stages wait 5.0 % of the iteration for stage 1. The layers of stage 1 take "
        "200 ms more than on the other stages."
    )
    assert finding.advice == (
        "Move layers to the other stages (`--decoder-last-pipeline-num-layers 4`): the slowest "
        "stage then takes 100 ms less in an iteration; `--account-for-loss-in-pipeline-split` "
        "counts the loss as a layer."
    )
    assert finding.evidence["stages"][1] == {
        "layers": 5,
        "total_ns": 500 * MS,
        "layers_ns": 500 * MS,
        "embedding_ns": 0,
        "other_ns": 0,
    }
    assert finding.evidence["better_split"] == [4, 4]


def test_a_split_is_advised_that_leaves_the_rest_even(tmp_path: Path) -> None:
    traces = [stage(n, 8, layer=10, output=70 if n == 3 else 0) for n in range(4)]
    finding = imbalance(analysis_of(tmp_path, *traces))
    assert finding is not None
    # 29 layers left for three stages would not be even; 27 or 30 are.
    assert finding.evidence["better_split"] == [10, 10, 10, 2]
    assert finding.evidence["gain_ns"] == 50 * MS
    assert finding.advice.startswith(
        "Move layers to the other stages (`--decoder-last-pipeline-num-layers 2`)"
    )
    assert "The work of stage 3 outside of layers" in finding.title


def test_an_embedding_that_is_less_than_a_layer_needs_another_number_of_layers(
    tmp_path: Path,
) -> None:
    finding = imbalance(analysis_of(tmp_path, stage(0, 2, embedding=90), stage(1, 2)))
    assert finding is not None
    assert finding.evidence["better_split"] is None
    assert "`--account-for-embedding-in-pipeline-split`" in finding.advice
    assert "The embedding of stage 0 takes 90 ms more" in finding.title


@pytest.mark.parametrize(
    "traces",
    [
        [stage(0, 3, embedding=60), stage(1, 3)],
        [stage(0, 3)],
        [TraceBuilder(n, 2).step(1, 0, 100).gpu(GEMM, 10, 20, launch=5) for n in range(2)],
    ],
    ids=["nearly even", "one stage", "no modules"],
)
def test_no_imbalance(tmp_path: Path, traces: list[TraceBuilder]) -> None:
    assert imbalance(analysis_of(tmp_path, *traces)) is None


def test_a_middle_stage_gives_to_both_ends(tmp_path: Path) -> None:
    finding = imbalance(analysis_of(tmp_path, stage(0, 2), stage(1, 5), stage(2, 2)))
    assert finding is not None
    assert finding.advice.startswith(
        "Move layers to the first and the last stage (`--decoder-first-pipeline-num-layers 3` with "
        "`--decoder-last-pipeline-num-layers 3`)"
    )


def test_without_traces_of_all_stages_no_split_is_advised(tmp_path: Path) -> None:
    groups = [{"pg_name": "1", "pg_desc": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": [0, 1, 2, 3]}]
    traces = [stage(0, 3), stage(1, 5)]
    for trace in traces:
        trace.entries["distributedInfo"]["pg_config"] = groups
        recv = collective_args("recv", "pp")
        trace.gpu(SENDRECV, 1500 * MS, 1500 * MS + 10, launch=600, args=recv)
    finding = imbalance(analysis_of(tmp_path, *traces))
    assert finding is not None
    assert finding.evidence["better_split"] is None
    assert "traces of all stages would tell how many" in finding.advice


def test_a_job_without_a_pipeline_is_one_stage(tmp_path: Path) -> None:
    trace = TraceBuilder().step(1, 0, 1000).annotation("layer: Layer", 0, 50)
    (found,) = analysis_of(tmp_path, trace.gpu(GEMM, 100, 160, launch=10)).stages
    assert found == StageWork(
        0,
        (0,),
        (PartWork("layer", 60.0, 0.0, 0.0, 0.0, 0.0, None),),
        (PartWork("Layer", 60.0, 0.0, 0.0, 0.0, 0.0, None),),
        60.0,
        0.0,
        0.0,
        60.0,
    )
