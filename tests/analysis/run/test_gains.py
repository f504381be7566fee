# SPDX-License-Identifier: Apache-2.0
"""What findings would gain: from a graph over ranks, in the order of the gains."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from recorded_traces import SAMPLES

from megatron import torch_trace
from megatron.torch_trace.analysis.findings import by_gain
from megatron.torch_trace.analysis.findings.remedies import remedy_of
from megatron.torch_trace.analysis.replay.change import (
    CommunicationScaled,
    LaunchScaled,
    RankAsMedian,
)
from megatron.torch_trace.analysis.replay.kernels.longest_path import CyclicGraphError
from megatron.torch_trace.analysis.results.analysis import Finding
from megatron.torch_trace.analysis.run.candidates import candidate_of
from megatron.torch_trace.analysis.run.graphs import Graphs
from megatron.torch_trace.analysis.run.recorded import recorded
from megatron.torch_trace.analysis.run.undisturbed_cost import calibration_of
from megatron.torch_trace.commands import analyze, whatif
from megatron.torch_trace.errors import DamagedTraceError
from megatron.torch_trace.report import sentences
from megatron.torch_trace.report.prediction.text import quoted

pytestmark = pytest.mark.slow

SLEEPER = SAMPLES / "analysis" / "dp4-rank2-slow"
SLEPT_NS = 48_000_000


def finding(code: str, gain_ns: int | None = None, error_ns: int = 0) -> Finding:
    return Finding(code, "low", "", {}, "", gain_ns=gain_ns, gain_error_ns=error_ns)


def test_the_sleep_of_a_rank_is_what_its_finding_gains_and_a_faster_network_gains_nothing() -> None:
    analysis = torch_trace.analyze(SLEEPER, gains=True)
    straggler = analysis.findings[0]
    assert (straggler.code, straggler.change) == ("straggler", "--rank 2=median")
    assert straggler.gain_ns == pytest.approx(SLEPT_NS, rel=0.1)
    (network,) = (one for one in analysis.findings if one.code == "exposed_communication_dp")
    assert network.change == "--comm dp*0"
    assert not network.sure_gain_ns
    assert network.cause == straggler.name
    assert analysis.findings[1] == network  # inside of its cause, whatever else gains more


def test_the_finding_names_the_work_that_takes_longer_and_the_error_knows_its_luck() -> None:
    straggler = torch_trace.analyze(SLEEPER, gains=True).findings[0]
    assert (
        "In an iteration, rank 2 takes 48.2 ms longer than its peers, in 4 stretches of the "
        "training loop's thread outside of all spans."
    ) in straggler.title
    (cause,) = straggler.evidence["causes"]
    assert (cause["rank"], cause["count"]) == (2, 4)
    assert straggler.gain_error_ns is not None
    assert abs((straggler.gain_ns or 0) - SLEPT_NS) <= 2 * straggler.gain_error_ns


def test_a_bubble_says_which_schedule_gains_most_of_it() -> None:
    analysis = torch_trace.analyze(SAMPLES / "tp2pp2-spans", gains=True)
    (bubble,) = (one for one in analysis.findings if one.code == "pipeline_bubble")
    assert bubble.change == "--virtual-stages 2"
    assert sentences.gain(bubble).startswith(" With `--virtual-stages 2`, the iteration would be ")


def test_what_costs_nothing_in_the_window_stands_in_the_first_line_as_unknown() -> None:
    loader = SAMPLES / "analysis" / "slow-dataloader"
    printed = CliRunner().invoke(analyze.command, [str(loader)]).output
    first = " ".join(line.strip() for line in printed.splitlines()[:2])
    assert first.endswith("; unknown without `data_loader_without_reserve`.")


def test_gains_are_told_without_the_profiler_where_its_cost_can_be_fitted() -> None:
    graphs = Graphs(recorded(SAMPLES / "tp2pp2"))
    graph = graphs.kernels()
    graphs.undisturbed_ns = 0.8 * graph.recorded_ns
    found = candidate_of(graph, [LaunchScaled(0.0)], None, graphs)
    assert found.undisturbed_gain_ns is not None
    assert 0 < found.undisturbed_gain_ns != found.gain_ns
    # In proportion the gain would be another one; half of that is the least of the error.
    half = abs(found.undisturbed_gain_ns - 0.8 * found.gain_ns) / 2
    assert found.undisturbed_error_ns is not None
    assert found.undisturbed_error_ns >= max(half, 0.79 * found.error_ns)
    told = replace(finding("launch_bound", 48_000_000, 200_000), undisturbed_gain_ns=31_000_000)
    assert sentences.gain(told) == (
        " Without this cause, the iteration would be 48 ms shorter (error 200 us; 31 ms without "
        "the profiler)."
    )
    told = replace(told, undisturbed_gain_error_ns=4_000_000)
    assert "; 31 ms without the profiler, error 4 ms)." in sentences.gain(told)


def test_a_change_that_takes_two_causes_away_is_told_once_in_the_first_line() -> None:
    analysis = torch_trace.analyze(SAMPLES / "pp4-interleaved-spans", gains=True)
    changes = [one.change for one in analysis.findings]
    assert changes.count("--stages balanced") == 2
    (first,) = sentences.possible_gains(analysis)
    assert first.endswith(
        "; possible gain: 20 ms with `--stages balanced`, 14.3 ms without `launch_bound`."
    )


def test_one_recorded_step_is_said() -> None:
    printed = CliRunner().invoke(whatif.command, [str(SLEEPER)]).output
    assert "Only one step is recorded, so the errors come from differences between ranks" in printed


def test_what_is_within_its_error_is_not_called_a_gain() -> None:
    told = [(45_000_000, 76_000_000), (0, 24_000), (0, 1_230_000), (48_000_000, 200_000)]
    assert [sentences.gain(finding("straggler", gain, error)) for gain, error in told] == [
        " Without this cause, the iteration would be 45 ms shorter, less than the error (76 ms).",
        " Without this cause, the iteration would not be shorter (error 24 us).",
        " Without this cause, a shorter iteration is not certain (error 1.23 ms).",
        " Without this cause, the iteration would be 48 ms shorter (error 200 us).",
    ]


def test_the_first_line_says_where_the_time_went_and_what_could_be_had() -> None:
    printed = CliRunner().invoke(analyze.command, [str(SLEEPER)]).output.splitlines()
    assert printed[0].startswith("457 ms an iteration: compute 23 %, exposed communication 27 %")
    assert "without `straggler`" in printed[1]
    plain = CliRunner().invoke(analyze.command, [str(SLEEPER), "--no-gains"]).output
    assert plain.startswith("4 ranks; NVIDIA H200; step 6, 457 ms an iteration")


def test_gains_are_keys_of_every_finding() -> None:
    for flag, is_known in (("--gains", True), ("--no-gains", False)):
        printed = CliRunner().invoke(analyze.command, [str(SLEEPER), "--json", flag]).output
        findings = json.loads(printed)["findings"]
        gains = [one["gain_ns"] is not None for one in findings if one["code"] == "straggler"]
        assert gains == [is_known]
        assert all({"gain_ns", "gain_error_ns"} <= one.keys() for one in findings)


def test_one_step_alone_has_no_gains() -> None:
    analysis = torch_trace.analyze(SLEEPER, gains=True, step=6)
    assert [one.gain_ns for one in analysis.findings] == [None] * len(analysis.findings)


def test_findings_with_the_largest_gain_come_first_and_those_for_nothing_last() -> None:
    nothing, little = finding("nothing", 0, 5), finding("little", 10, 5)
    much, unsure, unknown = finding("much", 90, 5), finding("unsure", 4, 5), finding("unknown")
    ordered = by_gain([nothing, little, unknown, much, unsure])
    assert [one.code for one in ordered] == ["much", "little", "unknown", "nothing", "unsure"]


def test_a_gain_that_nobody_would_see_in_an_iteration_is_for_nothing() -> None:
    little, much, unknown = finding("little", 999, 5), finding("much", 1_000, 5), finding("unknown")
    ordered = by_gain([little, unknown, much], iteration_ns=1e6)
    assert [one.code for one in ordered] == ["much", "unknown", "little"]


def test_a_finding_names_the_change_that_takes_its_cause_away() -> None:
    late = Finding("straggler", "high", "", {"rank": 3}, "")
    exposed = Finding("exposed_communication_tp-cp", "high", "", {"dimension": "tp-cp"}, "")
    assert remedy_of(late) == (RankAsMedian(3),)
    assert remedy_of(exposed) == (CommunicationScaled("tp-cp", 0.0),)
    assert remedy_of(finding("profiler_overhead")) == ()


def test_ranks_that_are_late_together_are_mended_together() -> None:
    late = Finding("straggler", "high", "", {"rank": 3, "ranks": [2, 3]}, "")
    assert remedy_of(late) == (RankAsMedian(2), RankAsMedian(3))
    assert quoted("--rank 2=median --kernel a b*0.5") == "--rank 2=median --kernel 'a b*0.5'"


def test_the_profiler_s_cost_is_fitted_to_the_undisturbed_iteration() -> None:
    graph = Graphs(recorded(SAMPLES / "tp2pp2")).kernels()
    undisturbed = 0.8 * graph.recorded_ns
    calibration = calibration_of(graph, undisturbed)
    assert calibration is not None
    assert calibration.iteration_ns(graph, []) == pytest.approx(undisturbed, rel=0.005)
    assert calibration.iteration_ns(graph, [RankAsMedian(3)]) < undisturbed
    assert calibration_of(graph, None) is None
    assert calibration_of(graph, 1.5 * graph.recorded_ns) is None
    assert calibration_of(graph, 0.01 * graph.recorded_ns) is None


def test_whatif_asks_the_graph_of_kernels_for_every_candidate() -> None:
    found = json.loads(CliRunner().invoke(whatif.command, [str(SLEEPER), "--json"]).output)
    assert found["graph"] == "kernels"
    assert found["inferred_edges"] > 0
    assert abs(found["simulated_ns"] - found["recorded_ns"]) < 0.005 * found["recorded_ns"]
    gains = [one["gain_ns"] for one in found["candidates"]]
    assert gains == sorted(gains, reverse=True)
    (late,) = (one for one in found["candidates"] if one["change"] == "--rank 2=median")
    assert late["finding"] == "straggler"
    assert late["gain_ns"] == pytest.approx(SLEPT_NS, rel=0.1)
    on_path = {one["rank"]: 0 for one in found["critical_path"]}
    for one in found["critical_path"]:
        on_path[one["rank"]] += one["time_ns"]
    assert max(on_path, key=on_path.__getitem__) == 2
    assert {one["rank"]: one["slack_ns"] for one in found["slack"]}[2] == 0


def test_kept_analyses_alone_have_no_graph_of_kernels(tmp_path: Path) -> None:
    for trace in SLEEPER.glob("*.gz"):
        (tmp_path / trace.name).write_bytes(trace.read_bytes())
    CliRunner().invoke(analyze.command, [str(tmp_path), "--partials"])
    for trace in tmp_path.glob("*.gz"):
        trace.unlink()
    error = CliRunner().invoke(whatif.command, [str(tmp_path), "--rank", "2=median"]).exception
    assert str(error) == (
        "--rank 2=median: the graph of kernels needs the traces themselves, and only kept analyses "
        "are here."
    )


def test_a_damaged_trace_is_answered_for_as_far_as_it_is_whole(tmp_path: Path) -> None:
    for trace in (SAMPLES / "tp2pp2-spans").glob("*.gz"):
        (tmp_path / trace.name).write_bytes(trace.read_bytes())
    hurt = tmp_path / "rank-1.pt.trace.json.gz"
    hurt.write_bytes(hurt.read_bytes()[:-400])
    done = CliRunner().invoke(whatif.command, [str(tmp_path), "--stages", "balanced", "--json"])
    assert isinstance(done.exception, DamagedTraceError)
    assert str(done.exception) == f"damaged: {hurt}."
    assert json.loads(done.output)["ranks"] == 4


def test_an_analysis_is_there_though_the_graph_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise IndexError("a case that nobody thought of")

    monkeypatch.setattr(Graphs, "for_changes", fails)
    analysis = torch_trace.analyze(SLEEPER, gains=True)
    assert [one.code for one in analysis.findings][:1] == ["straggler"]
    assert analysis.findings[0].gain_ns is None
    assert "gains are unknown, since the graph failed (IndexError" in caplog.text


def test_times_that_contradict_each_other_are_a_sentence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for error in (CyclicGraphError(), OverflowError("int too large")):

        def fails(*_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(Graphs, "for_changes", fails)
        caplog.clear()
        assert torch_trace.analyze(SLEEPER, gains=True).findings[0].gain_ns is None
        assert [record.getMessage() for record in caplog.records] == [
            "torch-trace: gains are unknown, since times in these traces contradict each other."
        ]


def test_whatif_names_changes_that_gain_next_to_nothing_and_json_has_their_numbers() -> None:
    sample = SAMPLES / "pp2-recompute-spans"
    said = " ".join(CliRunner().invoke(whatif.command, [str(sample)]).output.split())
    printed = CliRunner().invoke(whatif.command, [str(sample), "--json"]).output
    answer = json.loads(printed)
    least = answer["recorded_ns"] / 1000
    little = [
        one["change"]
        for one in answer["candidates"]
        if one["distinguishable"] and abs(one["gain_ns"]) < least
    ]
    assert len(little) > 1
    named = "; ".join(map(quoted, little))
    assert f"Less than 0.1 % of the iteration: {named}. Not distinguishable" in said
