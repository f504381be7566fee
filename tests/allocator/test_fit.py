# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  (a line that users read stands on one line)
"""`torch-trace memory --fit`: what a larger micro-batch needs, and what flags would free."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import invoked
from fitted_runs import ADAM, effects, fit, process, run_of
from snapshot_builder import MIB
from trace_builder import GEMM, TraceBuilder


@pytest.mark.parametrize("batch", [2, 4, 8])
def test_a_larger_micro_batch_needs_what_was_predicted(tmp_path: Path, batch: int) -> None:
    recorded = run_of(tmp_path / "one", process())
    larger = run_of(tmp_path / "larger", process(batch=batch), micro_batch_size=batch)
    needs = {
        one["micro_batch"]: one for one in fit(recorded, "--gpu-memory", 80)["ranks"][0]["needs"]
    }
    actual = json.loads(invoked("memory", larger, "--json").stdout)["peak_bytes"]
    assert needs[batch]["bytes"] == pytest.approx(actual, rel=0.001)


def test_the_largest_one_that_fits_leaves_room_for_what_is_not_torchs(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "run", process())
    # 1440 MiB of state, and 520 MiB a sample.
    found = fit(folder, "--gpu-memory", 8)
    assert (found["largest_micro_batch"], found["outside_of_torch_bytes"]) == (8, 2 * 10**9)
    assert [one["micro_batch"] for one in found["ranks"][0]["needs"]] == [1, 2, 4, 8]
    assert found["ranks"][0]["bytes_per_sample"] == 520 * MIB
    assert fit(folder, "--gpu-memory", 7)["largest_micro_batch"] == 4
    assert fit(folder, "--gpu-memory", 3)["largest_micro_batch"] is None


def test_metrics_tell_what_is_not_torchs(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "run", process())
    lines = [
        {"iteration": 1, "gpu/memory_used_gib": 4.0, "memory/reserved_gib": 3.5},
        {"iteration": 2, "gpu/memory_used_gib": 4.0, "memory/reserved_gib": 3.0},
        {"iteration": 3, "gpu/memory_used_gib": 9.0},
    ]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n{half")
    found = fit(folder, "--gpu-memory", 7)
    assert (found["outside_of_torch_bytes"], found["outside_of_torch_is_assumed"]) == (
        1 << 30,
        False,
    )
    assert found["largest_micro_batch"] == 8


def test_an_out_of_memory_error_tells_what_the_gpu_has_and_what_is_not_torchs(
    tmp_path: Path,
) -> None:
    folder = run_of(tmp_path / "run", process())
    seen = {"schema": 1, "total_bytes": 8 * 10**9, "outside_bytes": 10**9}
    window = folder / "iter-0000005" / "artifacts"
    (window / "rank-0.live_bytes.json").write_text(json.dumps(seen))
    found = fit(folder)
    assert (found["ranks"][0]["room_bytes"], found["outside_of_torch_is_assumed"]) == (
        7 * 10**9,
        False,
    )
    (window / "rank-0.live_bytes.json").write_text('{"total_bytes": "many"}')
    assert fit(folder)["ranks"][0]["room_bytes"] is None


def test_what_the_gpu_has_is_not_made_up(tmp_path: Path) -> None:
    found = fit(run_of(tmp_path / "run", process()))
    assert (found["largest_micro_batch"], found["ranks"][0]["room_bytes"]) == (None, None)
    assert [one["micro_batch"] for one in found["ranks"][0]["needs"]] == [1, 2, 4, 8]


def test_a_run_that_nothing_tells_of_has_no_answer(tmp_path: Path) -> None:
    path = process().write(tmp_path / "rank-0.memory_snapshot.pickle")
    assert fit(path)["unknown"].startswith("no run.json of --torch-profile lies above")
    assert "What fits is unknown: no run.json" in invoked("memory", path, "--fit").output


def test_a_command_line_in_the_trace_beside_tells_as_much(tmp_path: Path) -> None:
    process().write(tmp_path / "rank-0.memory_snapshot.pickle")
    argv = ["pretrain_gpt.py", "--micro-batch-size", "1", "--num-layers=4", "--hidden-size", "1024"]
    argv += ["--seq-length", "1024", "--num-attention-heads", "16", "--global-batch-size", "8"]
    trace = TraceBuilder(own={"argv": argv}).step(5, 0, 1_000).gpu(GEMM, 100, 900)
    trace.entries["deviceProperties"] = [{"id": 0, "name": "X", "totalGlobalMem": 8 * 10**9}]
    trace.write(tmp_path / "rank-0.pt.trace.json")
    found = fit(tmp_path)
    assert found["ranks"][0]["capacity_bytes"] == 8 * 10**9
    assert effects(found)["--recompute-activations"][0] == 78 * 3


def test_recomputation_frees_what_was_measured_less_one_layer(tmp_path: Path) -> None:
    found = effects(fit(run_of(tmp_path / "run", process())))
    # Core attention keeps 80 MiB a layer, of which its output, 2sbh, stays.
    assert found["--recompute-activations"] == (78 * 3, 80)
    # 114 MiB a layer, of which the input, 2sbh, stays, and one layer is recomputed at a time.
    assert found["--recompute-granularity full"] == (112 * 4 - 114, 114)


def test_what_does_not_lower_the_peak_frees_nothing(tmp_path: Path) -> None:
    built = process()
    step = built.alloc(2000 * MIB, *ADAM)
    built.free(step, *ADAM)
    found = fit(run_of(tmp_path / "run", built))
    assert effects(found)["--recompute-granularity full"][0] == 0
    (full,) = [one for one in found["effects"] if "granularity" in one["change"]]
    assert full["how"].endswith("; the peak is at another moment")


def test_fused_attention_has_nothing_to_recompute_selectively(tmp_path: Path) -> None:
    found = effects(fit(run_of(tmp_path / "run", process(core=2))))
    assert found["--recompute-activations"] == (0, 2)


def test_flags_that_are_given_are_not_advised(tmp_path: Path) -> None:
    given = {"recompute_granularity": "full", "use_distributed_optimizer": True}
    found = effects(fit(run_of(tmp_path / "run", process(core=0, linear=2), **given)))
    assert found == {"--pipeline-model-parallel-size": found["--pipeline-model-parallel-size"]}


def test_the_distributed_optimizer_shards_what_is_there(tmp_path: Path) -> None:
    found = effects(fit(run_of(tmp_path / "run", process())))
    assert found["--use-distributed-optimizer"] == (960 * 3 // 4, 19)
    alone = run_of(tmp_path / "alone", process(), data_parallel_size=1)
    assert "--use-distributed-optimizer" not in effects(fit(alone))


def test_sequence_parallelism_is_the_formulas_where_the_formula_fits(tmp_path: Path) -> None:
    # With t = 2 a layer has 10sbh + 12sbh + 40 MiB.
    folder = run_of(tmp_path / "run", process(core=40, linear=22), tensor_model_parallel_size=2)
    assert effects(fit(folder))["--sequence-parallel"] == (5 * 4, 0)
    other = run_of(tmp_path / "other", process(core=40, linear=90), tensor_model_parallel_size=2)
    (found,) = [one for one in fit(other)["effects"] if one["change"] == "--sequence-parallel"]
    assert found["frees_bytes"] is None
    assert found["how"].startswith(
        "the formula gives 65 MB a layer and micro-batch, measured are 136 MB"
    )


def test_more_stages_halve_the_layers_state(tmp_path: Path) -> None:
    # A layer has 12h^2 = 12 Mi parameters, the embedding 32 Mi: 2 x 80 MiB.
    found = effects(fit(run_of(tmp_path / "run", process())))
    layers = 48 / 80
    assert found["--pipeline-model-parallel-size"] == (round((160 + 320 + 960) / 2 * layers), 0)


def test_the_optimizer_state_goes_to_the_cpu_with_the_flags_that_this_needs(
    tmp_path: Path,
) -> None:
    run = run_of(tmp_path / "run", process(), optimizer_cpu_offload=False)
    (found,) = [one for one in fit(run)["effects"] if "offload" in one["change"]]
    assert found["change"] == (
        "--optimizer-cpu-offload --use-precision-aware-optimizer --use-distributed-optimizer"
    )
    assert (found["frees_bytes"], found["error_bytes"]) == (960 * MIB, round(0.02 * 960 * MIB))
    for given in ({"optimizer_cpu_offload": True}, {}):  # on already; a Megatron without the flag
        other = run_of(tmp_path / f"other-{len(given)}", process(), **given)
        assert not [one for one in fit(other)["effects"] if "offload" in one["change"]]


def test_a_layer_less_on_the_fullest_stage_frees_its_state_and_its_activations(
    tmp_path: Path,
) -> None:
    stages = [process(in_flight=2, layers=2, marks=True), process(layers=2, marks=True)]
    run = run_of(tmp_path / "run", *stages, pipeline_model_parallel_size=2, padded_vocab_size=57344)
    (found,) = [one for one in fit(run)["effects"] if "layout" in one["change"]]
    assert found["change"].endswith("with a layer less on stage 0")
    # 160 MiB of parameters: two layers of 24 MiB, the rest is the embedding.
    of_state = (160 + 320 + 960) * 24 / 160
    assert found["frees_bytes"] // MIB == of_state + 2 * 114
    assert found["error_bytes"] // MIB == 114
    assert found["how"].endswith(" for each of 2 micro-batches; another stage takes them")


def test_the_turns_of_a_micro_batch_are_one_micro_batch(tmp_path: Path) -> None:
    """`--overlap-moe-expert-parallel-comm` leaves a span for each turn of a pass."""
    answers = []
    for kind in ({"marks": True}, {"turns": True}):
        stages = [process(in_flight=2, layers=2, **kind), process(layers=2, **kind)]
        run = run_of(tmp_path / str(*kind), *stages, pipeline_model_parallel_size=2)
        answers.append(fit(run, "--gpu-memory", 80))
    whole, turns = answers
    assert turns["effects"] == whole["effects"]
    assert [one["needs"] for one in turns["ranks"]] == [one["needs"] for one in whole["ranks"]]


@pytest.mark.parametrize("flag", ["use_torch_fsdp2", "use_megatron_fsdp"])
def test_what_fsdp_has_sharded_is_not_sharded_again(tmp_path: Path, flag: str) -> None:
    given = {flag: True, "optimizer_cpu_offload": False}
    found = effects(fit(run_of(tmp_path / "run", process(), **given)))
    assert set(found) == {"--recompute-activations", "--recompute-granularity full"}


def test_the_fuller_stage_decides_and_fewer_micro_batches_are_kept(tmp_path: Path) -> None:
    stages = [
        process(in_flight=2, layers=2, marks=True),
        process(in_flight=1, layers=2, marks=True),
    ]
    folder = run_of(tmp_path / "run", *stages, pipeline_model_parallel_size=2)
    found = fit(folder, "--gpu-memory", 80)
    assert [one["stage"] for one in found["ranks"]] == [0, 1]
    first, second = ({n["micro_batch"]: n["bytes"] for n in one["needs"]} for one in found["ranks"])
    expected = {
        1: 1440 + 2 * 228 + 64,
        2: 1440 + 2 * (2 * 228 + 64),
        4: 1440 + 4 * (2 * 228 + 64),
        # A replica's iteration then is one micro-batch: the first stage keeps one.
        8: 1440 + 8 * (228 + 64),
    }
    assert first == {one: pytest.approx(size * MIB, rel=1e-5) for one, size in expected.items()}
    assert second[8] == pytest.approx((1440 + 8 * (228 + 64)) * MIB, rel=1e-5)


def test_two_runs_measure_the_slope(tmp_path: Path) -> None:
    one = run_of(tmp_path / "one", process())
    two = run_of(tmp_path / "two", process(batch=2), micro_batch_size=2)
    found = fit(one, two, "--gpu-memory", 8)
    (rank,) = found["ranks"]
    assert (rank["measured_with_micro_batch"], rank["bytes_per_sample"]) == (2, 520 * MIB)
    assert found["largest_micro_batch"] == 8
    assert found["measured"] == [
        {
            "change": "micro_batch_size 1 -> 2",
            "frees_bytes": -520 * MIB,
            "error_bytes": None,
            "how": "measured: the peaks of two runs, on one rank",
        }
    ]


def test_two_runs_measure_what_a_flag_frees(tmp_path: Path) -> None:
    one = run_of(tmp_path / "one", process())
    two = run_of(tmp_path / "two", process(core=2), recompute_granularity="selective")
    (found,) = fit(one, two)["measured"]
    assert (found["change"], found["frees_bytes"]) == (
        "recompute_granularity None -> selective",
        4 * 78 * MIB,
    )


def test_it_is_printed(tmp_path: Path) -> None:
    lines = invoked(
        "memory", run_of(tmp_path / "run", process()), "--fit", "--gpu-memory", 8
    ).output.splitlines()
    assert lines[:8] == [
        "The largest micro-batch that fits is 8 (recorded with 1).",
        "",
        "Rank 0: a sample takes 545 MB at the peak (measured in one run). Torch may have 6 GB: 8 GB of the GPU less 2 GB for CUDA and NCCL (set aside, an assumption).",
        "micro-batch   rank 0",
        "          1  2.06 GB",
        "          2   2.6 GB",
        "          4  3.69 GB",
        "          8  5.87 GB",
    ]
    assert any(line.startswith("--use-distributed-optimizer") for line in lines)


def test_a_fit_is_of_one_state(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "run", process())
    ended = invoked("memory", folder, "--against", folder, "--fit")
    assert "--fit: is about one state; leave out --against." in str(ended.exception)
