# SPDX-License-Identifier: Apache-2.0
"""Recorded pipelines replay within 2 %, and `whatif` answers for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from command_line import invoked
from command_line import run as refusal
from recorded_traces import SAMPLES
from trace_builder import GEMM, TraceBuilder

from megatron import torch_trace
from megatron.torch_trace.analysis.replay.answers import UnreplayableError
from megatron.torch_trace.analysis.replay.spans.orders import Shape
from megatron.torch_trace.analysis.replay.spans.span_replay import SpanReplay
from megatron.torch_trace.analysis.run.recorded import recorded
from megatron.torch_trace.errors import TorchTraceError, UsageError

pytestmark = pytest.mark.slow

KEYS = {"recorded_ns", "simulated_ns", "undisturbed_ns", "inferred_edges", "candidates"}
KEYS |= {"schema", "critical_path", "slack"}


def run(*arguments: str | Path) -> Result:
    return invoked("whatif", *arguments)


def replay(*paths: Path) -> SpanReplay:
    outcomes = recorded(paths).by_rank.values()
    return SpanReplay.of([(one.result, one.calls) for one in outcomes])


@pytest.mark.parametrize(
    ("folder", "shape"),
    [
        ("tp2pp2", Shape(2, 1, 8)),
        ("tp2pp2-spans", Shape(2, 1, 4)),
        ("pp2-recompute-spans", Shape(2, 1, 8)),
        ("pp4-interleaved-spans", Shape(4, 2, 4)),
        ("dp2-spans", Shape(1, 1, 8)),
        ("ep2-spans", Shape(1, 1, 4)),
    ],
)
def test_a_recorded_iteration_replays_within_2_percent(folder: str, shape: Shape) -> None:
    found = replay(SAMPLES / folder)
    assert found.shape == shape
    assert abs(found.simulated_ns - found.recorded_ns) < 0.02 * found.recorded_ns
    path = found.simulate([]).critical_path
    assert sum(piece.time_ns for piece in path) == pytest.approx(found.simulated_ns, abs=50)


def test_a_pipeline_with_a_stage_missing_is_refused_and_one_rank_of_each_stage_is_enough() -> None:
    folder = SAMPLES / "tp2pp2-spans"
    names = [folder / f"rank-{rank}.pt.trace.json.gz" for rank in range(4)]
    with pytest.raises(UnreplayableError) as refused:
        replay(*names[:2])
    assert str(refused.value) == (
        "no rank of pipeline stage 1 was recorded; record a rank of every stage with "
        "--torch-profile-ranks tp=0,dp=0."
    )
    one_of_each = replay(names[0], names[2])
    assert abs(one_of_each.simulated_ns - one_of_each.recorded_ns) < 0.02 * one_of_each.recorded_ns


@pytest.mark.parametrize("change", ["--micro-batches 16", "--stages balanced"])
def test_without_spans_of_micro_batches_the_change_is_refused(change: str, tmp_path: Path) -> None:
    rank = TraceBuilder().step(5, 0, 100_000).gpu(GEMM, 20_000, 90_000, launch=2_000)
    refused = refusal("whatif", rank.write(tmp_path / "rank-0.json"), *change.split())
    assert refused.returncode == 2
    assert refused.stdout == b""
    assert refused.stderr.decode() == (
        f"torch-trace: {change}: the traces have no spans of micro-batches; record the "
        "micro-batches with --torch-profile-spans phases.\n"
    )


def test_json_has_the_keys_that_others_rely_on() -> None:
    found = json.loads(
        run(SAMPLES / "pp2-recompute-spans", "--stages", "balanced", "--json").output
    )
    assert found.keys() >= KEYS
    (candidate,) = found["candidates"]
    assert candidate["change"] == "--stages balanced"
    assert candidate["iteration_ns"] == found["simulated_ns"]
    assert candidate["gain_ns"] == found["replayed_ns"] - found["simulated_ns"]
    assert candidate.keys() >= {"change", "finding", "iteration_ns", "gain_ns", "error_ns"}
    assert [one["rank"] for one in found["slack"] if not one["slack_ns"]] == [0]
    assert found["span_slack"][0].keys() == {"rank", "step", "name", "slack_ns"}
    assert found["collective_slack"] == []
    assert found["critical_path"][0].keys() == {"rank", "kind", "name", "time_ns"}


def test_changes_are_options_words_and_names() -> None:
    folder = SAMPLES / "pp4-interleaved-spans"
    by_option = json.loads(run(folder, "--micro-batches", "8", "--json").output)
    by_word = torch_trace.whatif(folder, "--micro-batches 8")
    by_name = torch_trace.whatif(folder, micro_batches=8)
    assert by_word.changes == by_name.changes == ("--micro-batches 8",)
    assert by_option["simulated_ns"] == by_word.simulated_ns == by_name.simulated_ns
    assert by_word.recorded_ns < by_word.simulated_ns < 2 * by_word.recorded_ns
    assert by_word.candidates[0].gain_ns > 0
    assert "for as many tokens" in run(folder, "--micro-batches", "8").output


def test_a_wrong_change_is_one_sentence() -> None:
    folder = SAMPLES / "pp2-recompute-spans"
    for words, sentence in (
        (["--rank", "1=mean"], "did you mean --rank 1=median?"),
        (["--cpu-operators*half"], "did you mean --cpu-operators 0.5?"),
        (["--rank", "1=median", "--micro-batches", "8"], "ask for one of them at a time."),
        (["--launch", "2e3", "--kernel", "gemm*501"], "multiplied with each other."),
        (["--launch", "1e300"], "did you mean --launch 1e+06?"),
    ):
        error = run(folder, *words).exception
        assert isinstance(error, UsageError)
        assert str(error).endswith(sentence)
    with pytest.raises(TorchTraceError, match=r"^--ranks: no such change; did you mean --rank"):
        torch_trace.whatif(folder, ranks="1=median")


def test_a_send_takes_the_cpu_as_long_as_where_nothing_is_waited_for() -> None:
    known = recorded([SAMPLES / "tp2pp2-spans"]).by_rank.values()
    least = min(
        row.time_ns / row.calls
        for one in known
        for row in one.result.phases
        if row.phase in ("forward-send", "backward-send-forward-recv", "forward-recv")
    )
    sending = replay(SAMPLES / "tp2pp2-spans").passes.sending
    assert 0 < sending <= least
    assert replay(SAMPLES / "tp2pp2").passes.sending == 0


def test_overlap_is_called_an_estimate() -> None:
    answer = torch_trace.whatif(SAMPLES / "dp2-spans", "--overlap dp")
    assert [note for note in answer.notes if note.startswith("--overlap dp: is an estimate")]
    assert not [
        note for note in torch_trace.whatif(SAMPLES / "dp2-spans").notes if "estimate" in note
    ]
