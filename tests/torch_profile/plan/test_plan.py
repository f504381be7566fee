# SPDX-License-Identifier: Apache-2.0
"""The plan: what is printed, what is refused, where files go."""

from __future__ import annotations

import os
from dataclasses import Field, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from megatron.torch_profile.config import TorchProfileConfig
from megatron.torch_profile.plan import capture_plan
from megatron.torch_profile.plan.capture_plan import CapturePlan
from megatron.torch_profile.plan.ranks import Layout
from megatron.torch_profile.plan.schedule import Schedule, Span, Window
from megatron.torch_profile.plan.topology import Member, Topology
from megatron.torch_profile.plan.trace_size import estimate
from megatron.torch_trace.errors import UsageError


def arguments_of(**values: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"train_iters": 10, "iteration": 0, "tensorboard_dir": None, **values})


def make(ranks: tuple[int, ...], span: Span, **flags: Any) -> CapturePlan:
    config = TorchProfileConfig(enabled=True, **flags)
    members = [Member(r, "node0", 100 + r, r, "NVIDIA H200", {"tp": r % 2}) for r in range(16)]
    topology = Topology(3, Layout(16, {"tp": 2, "cp": 1, "pp": 1, "dp": 8, "ep": 2}), members)
    return CapturePlan(config, topology, ranks, Schedule(config, span), Path("/traces/run"))


def test_the_plan_in_words() -> None:
    described = make(
        (0, 1, 2, 3, 8),
        Span(1001, 2000),
        repeat=0,
        wait=98,
        with_stack=True,
        spans=["modules", "phases"],
    )
    assert described.describe().splitlines() == [
        "ranks: 0-3, 8 (world size 16 = tp 2 x cp 1 x pp 1 x dp 8, ep 2)",
        "iterations: 1101, 1201, 1301, 1401, 1501, ... (warm-up 1 before each); this process runs "
        "iterations 1001 to 2000",
        "recording: cpu and cuda; switched on: --torch-profile-with-stack, --torch-profile-spans "
        "phases modules",
        "traces: /traces/run",
    ]


def test_the_warm_up_of_a_single_window_is_not_said_to_come_before_each() -> None:
    for many, said in ((1, "3 (warm-up 1 before the window)"), (2, "3, 5 (warm-up 1 before each)")):
        assert f"iterations: {said}; " in make((0,), Span(1, 9), repeat=many).describe()


def test_a_plan_says_what_watches_the_run() -> None:
    described = make((0,), Span(1, 100), monitor=True, on_hang=300.0, trigger=["file", "signal"])
    assert described.describe().splitlines()[2] == (
        "recording: cpu and cuda; switched on: --torch-profile-monitor, "
        "--torch-profile-trigger file signal, --torch-profile-on-hang 300"
    )


def test_what_lies_behind_a_resume_is_said() -> None:
    described = make((0,), Span(51, 200), iterations=["3-4", "7", "100-101"])
    assert described.describe().splitlines()[-1] == (
        "iterations 3-4, 7 lie before the first iteration of this process and are left out"
    )


def test_no_warmup_is_said() -> None:
    assert "has no warm-up" in make((0,), Span(1, 9), warmup=0).describe()


def test_a_finished_run_started_again_is_no_mistake() -> None:
    described = make((0,), Span(11, 10)).describe()
    assert "iterations: none, this process has none left to run" in described


def test_files_are_named_by_window_and_padded_rank() -> None:
    made = make((3,), Span(1, 100), compression="zstd")
    assert made.records_here
    assert made.window_folder(Window(3, 4, 1)) == Path("/traces/run/iter-0000003-0000004")
    assert str(made.trace_name()) == "rank-03.pt.trace.json.zst"
    assert str(made.trace_name(partial=True)) == "rank-03.partial.pt.trace.json.zst"


def test_a_plan_agreed_by_one_process(tmp_path: Path) -> None:
    agreed = capture_plan.agree(
        TorchProfileConfig(enabled=True, dir=str(tmp_path / "traces")), arguments_of()
    )
    assert agreed.ranks == (0,)
    assert agreed.run_folder.parent == tmp_path / "traces"
    assert agreed.run_folder.is_dir()
    assert list(agreed.run_folder.iterdir()) == []
    assert list(agreed.schedule) == [Window(3, 3, 1)]


def test_two_launches_in_one_second_get_a_folder_each(tmp_path: Path) -> None:
    config = TorchProfileConfig(enabled=True, dir=str(tmp_path))
    folders = {capture_plan.agree(config, arguments_of()).run_folder for _ in range(3)}
    assert len(folders) == 3


def test_the_slurm_job_is_in_the_runs_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    agreed = capture_plan.agree(TorchProfileConfig(enabled=True, dir=str(tmp_path)), arguments_of())
    assert agreed.run_folder.name.endswith("-j4711")


def test_traces_go_to_the_tensorboard_folder_by_default(tmp_path: Path) -> None:
    agreed = capture_plan.agree(
        TorchProfileConfig(enabled=True), arguments_of(tensorboard_dir=tmp_path)
    )
    assert agreed.run_folder.parent == tmp_path


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "traces"
    with pytest.raises(UsageError) as error:
        capture_plan.agree(TorchProfileConfig(enabled=True, dir=str(folder)), arguments_of())
    assert str(error.value) == (
        f"--torch-profile-dir {folder}: rank 0 cannot write there (Not a directory); name a folder "
        "that every profiled rank can write to."
    )


@pytest.mark.parametrize(
    ("flag", "value", "least"),
    [
        ("max_trace_mb", 0, 1),
        ("max_trace_mb", -5, 1),
        ("spans_depth", 0, 1),
        ("exit_timeout", -1, 0),
    ],
)
def test_a_number_that_is_too_small_is_refused(flag: str, value: int, least: int) -> None:
    config = TorchProfileConfig(enabled=True, spans=["modules"], **{flag: value})
    with pytest.raises(UsageError) as error:
        capture_plan.check(config, arguments_of())
    assert str(error.value) == (
        f"--torch-profile-{flag.replace('_', '-')} {value}: must be {least} or more."
    )


@pytest.mark.parametrize("field", fields(TorchProfileConfig), ids=lambda field: field.name)
def test_no_number_may_be_negative(field: Field[Any]) -> None:
    if field.type not in ("int", "int | None", "float | None"):
        return
    config = TorchProfileConfig(enabled=True, spans=["modules"], **{field.name: -1})
    with pytest.raises(UsageError, match=f"^--torch-profile-{field.name.replace('_', '-')} -1: "):
        capture_plan.check(config, arguments_of())


@pytest.mark.parametrize("flag", ["with_flops", "key_averages", "execution_trace"])
def test_what_needs_operators_is_refused_without_them(flag: str) -> None:
    config = TorchProfileConfig(enabled=True, preset="light", **{flag: True}).with_preset()
    with pytest.raises(UsageError) as error:
        capture_plan.check(config, arguments_of())
    assert str(error.value) == (
        f"--torch-profile-{flag.replace('_', '-')} needs operators, and "
        "--torch-profile-no-operators (which --torch-profile-preset light switches on) records "
        "none; drop one of the two."
    )


def test_an_exit_interval_ends_the_run_for_the_schedule_too(tmp_path: Path) -> None:
    config = TorchProfileConfig(enabled=True, dir=str(tmp_path), iterations=["8"])
    with pytest.raises(UsageError, match=r"runs iterations 1 to 5 \(--exit-interval 5\)"):
        capture_plan.agree(config, arguments_of(exit_interval=5))


@pytest.mark.parametrize(("done", "last"), [(0, 5), (4, 5), (5, 10), (6, 10), (19, 20), (20, 23)])
def test_an_exit_interval_ends_a_resumed_run_at_its_next_multiple(done: int, last: int) -> None:
    run = arguments_of(iteration=done, train_iters=23, exit_interval=5)
    assert capture_plan.schedule_of(TorchProfileConfig(), run).span == Span(done + 1, last)


def test_profiled_ranks_of_a_node_share_its_disks() -> None:
    config, span = TorchProfileConfig(enabled=True), Span(1, 9)
    hosts = ["node0", "node0", "node1", "node1", "node1", "node2"]
    members = [Member(r, host, 100 + r, r, "NVIDIA H200", {}) for r, host in enumerate(hosts)]
    writers = [
        CapturePlan(
            config,
            Topology(me, Layout(6, {"tp": 1, "cp": 1, "pp": 1, "dp": 6}), members),
            (0, 1, 2, 4),
            Schedule(config, span),
            Path("/traces/run"),
        ).writers_here
        for me in range(6)
    ]
    assert writers == [2, 2, 2, 2, 2, 1]


def test_a_resume_moves_the_cycles(tmp_path: Path) -> None:
    config = TorchProfileConfig(enabled=True, dir=str(tmp_path))
    assert list(capture_plan.agree(config, arguments_of(iteration=5)).schedule) == [Window(8, 8, 1)]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({}, "1 of 1 window does not fit and is left out"),
        (
            {"iterations": ["3-4"]},
            "iterations 3-4 lie before the first iteration of this process and are left out",
        ),
        (
            {"iterations": ["10-12"]},
            "iterations 10-12 lie beyond 10, the last iteration of this process, and are left out",
        ),
        ({"frequency": 5, "repeat": 0}, None),
    ],
    ids=str,
)
def test_a_script_that_is_started_again_after_its_windows_trains_on_without_any(
    tmp_path: Path, flags: dict[str, Any], said: str | None
) -> None:
    config = TorchProfileConfig(enabled=True, dir=str(tmp_path), **flags)
    agreed = capture_plan.agree(config, arguments_of(iteration=8))
    assert list(agreed.schedule) == []
    lines = agreed.describe().splitlines()
    assert "iterations: none of those asked for; this process runs iterations 9 to 10" in lines
    assert said is None or said == lines[-1]


def test_of_several_windows_a_resumed_run_records_those_that_fit(tmp_path: Path) -> None:
    config = TorchProfileConfig(enabled=True, dir=str(tmp_path), repeat=3)
    agreed = capture_plan.agree(config, arguments_of(iteration=4))
    assert list(agreed.schedule) == [Window(7, 7, 1), Window(9, 9, 1)]
    assert agreed.describe().endswith("1 of 3 windows does not fit and is left out")


def test_what_dead_runs_left_unfinished_is_named_and_what_lives_is_not(tmp_path: Path) -> None:
    window = tmp_path / "20260101-000000" / "iter-0000003"
    window.mkdir(parents=True)
    dead, living = window / "rank-0.pt.trace.json.gz.7.json.tmp", window / "x.tmp"
    dead.touch()
    living.touch()
    os.utime(dead, (0, 0))
    agreed = capture_plan.agree(TorchProfileConfig(enabled=True, dir=str(tmp_path)), arguments_of())
    assert agreed.describe().splitlines()[-1] == (
        f"earlier runs left 1 unfinished trace, such as {dead}: torch-trace recover "
        "saves the events in them"
    )
    assert dead.exists()


def test_the_size_to_expect_is_guessed_from_layers_and_micro_batches() -> None:
    args = arguments_of(
        num_layers=24,
        pipeline_model_parallel_size=1,
        global_batch_size=128,
        data_parallel_size=4,
        micro_batch_size=1,
    )
    plain, stacks = (
        estimate(TorchProfileConfig(with_stack=with_stack), args, 1) for with_stack in (False, True)
    )
    # Measured: 188 MB and 735 MB.
    assert str(plain).startswith("about 192 MB raw (a guess")
    assert str(stacks).startswith("about 749 MB raw (a guess")
    assert str(stacks).endswith("3.74 GB of host memory until it is written")
    assert estimate(TorchProfileConfig(), arguments_of(), 1) is None


def test_a_trace_grows_with_layers_micro_batches_and_iterations() -> None:
    def raw_mb(iterations: int, **values: int) -> float:
        sizes = {
            "num_layers": 24,
            "pipeline_model_parallel_size": 2,
            "global_batch_size": 32,
            "data_parallel_size": 2,
            "micro_batch_size": 4,
        }
        guess = estimate(TorchProfileConfig(), SimpleNamespace(**{**sizes, **values}), iterations)
        assert guess is not None
        return guess.raw_mb

    once = raw_mb(1)
    assert raw_mb(3) == pytest.approx(3 * once)
    assert raw_mb(1, num_layers=48) == pytest.approx(2 * once)
    assert raw_mb(1, micro_batch_size=2) == pytest.approx(2 * once)
    assert raw_mb(1, micro_batch_size=3) == pytest.approx(4 / 3 * once)
    assert raw_mb(1, data_parallel_size=8) == pytest.approx(once / 4)


def test_a_temporary_file_that_vanishes_while_it_is_looked_at_is_nobodys_trouble(
    tmp_path: Path,
) -> None:
    window = tmp_path / "20260101-000000" / "iter-0000003"
    window.mkdir(parents=True)
    (window / "rank-0.pt.trace.json.gz.7.json.tmp").symlink_to(tmp_path / "gone")
    agreed = capture_plan.agree(TorchProfileConfig(enabled=True, dir=str(tmp_path)), arguments_of())
    assert agreed.unfinished == ()
