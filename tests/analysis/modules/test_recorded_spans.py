# SPDX-License-Identifier: Apache-2.0
"""Spans as they were recorded on GPUs: layers, phases, micro-batches, and what is in no module."""

from __future__ import annotations

import pytest
from recorded_traces import SAMPLES

from megatron.torch_trace.analysis.results.analysis import RankResult
from megatron.torch_trace.analysis.run.analyse import analyze


def ranks_of(sample: str) -> tuple[RankResult, ...]:
    return analyze(SAMPLES / sample).ranks


@pytest.mark.parametrize("sample", ["tp2pp2-spans", "dp2-spans", "ep2-spans"])
def test_under_2_percent_of_the_work_of_micro_batches_is_in_no_module(sample: str) -> None:
    for rank in ranks_of(sample):
        account = rank.module_account
        assert account is not None
        assert account.microbatch_ns is not None
        assert account.microbatch_unattributed_ns is not None
        assert account.microbatch_unattributed_ns < 0.02 * account.microbatch_ns, rank.rank


def test_both_stages_have_their_layers_phases_and_micro_batches() -> None:
    for rank in ranks_of("tp2pp2-spans"):
        layers = [row for row in rank.modules if row.type == "TransformerLayer"]
        assert [row.module for row in layers] == ["decoder.layers.0", "decoder.layers.1"]
        assert all((row.calls, row.backward_calls) == (4, 4) for row in layers)
        # Of two samples with 512 tokens, on half of each matrix: h = 1024 (Megatron's formula, with
        # all of attention); backward costs twice as much.
        tokens, hidden = 4 * 2 * 512, 1024
        forward = tokens * (24 * hidden**2 + 4 * 512 * hidden) // 2
        assert {(row.flops, row.backward_flops) for row in layers} == {(forward, 2 * forward)}
        assert {"forward micro-batch", "backward micro-batch", "optimizer"} <= {
            row.phase for row in rank.phases
        }
        places = [(row.number, row.forward_place, row.backward_place) for row in rank.microbatches]
        first = rank.coordinates["pp"] == 0
        assert places == [
            (0, "warmup" if first else "steady", "steady"),
            (1, "steady", "steady"),
            (2, "steady", "steady"),
            (3, "steady", "cooldown" if first else "steady"),
        ]


def test_every_stage_of_an_interleaved_pipeline_knows_its_micro_batches_and_chunks() -> None:
    analysis = analyze(SAMPLES / "pp4-interleaved-spans")
    steps = [step for rank in analysis.ranks for step in rank.pipeline]
    assert [(one.stage, one.stages, one.microbatches, one.chunks) for one in steps] == [
        (stage, 4, 4, 2) for stage in range(4)
    ]
    assert {one.ideal_share for one in steps} == {3 / 11}
    (bubble,) = [one for one in analysis.findings if one.code == "pipeline_bubble"]
    assert (
        "with 4 stages of 2 chunks each and 4 micro-batches of equal cost it would take 27 %"
        in (bubble.title)
    )


def test_experts_are_modules_of_their_own() -> None:
    (rank,) = ranks_of("ep2-spans")
    experts = {row.module: row for row in rank.modules if row.module.endswith(tuple("0123"))}
    first = [experts[f"decoder.layers.0.mlp.experts.local_experts.{n}"] for n in range(4)]
    assert len({row.flops for row in first}) == 4  # the router's choice: no two have equal work
