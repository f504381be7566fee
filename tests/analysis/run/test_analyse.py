# SPDX-License-Identifier: Apache-2.0
"""Ranks together: files, folders, bad ones, and the same answer however many processes work."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from trace_builder import GEMM, TraceBuilder

from megatron import torch_trace
from megatron.torch_trace.analysis.run import rank_pool
from megatron.torch_trace.analysis.run.analyse import analyze
from megatron.torch_trace.analysis.run.rank_pool import analyse_ranks
from megatron.torch_trace.errors import StrictError, TorchTraceError, UsageError
from megatron.torch_trace.system.memory import HostMemory


def rank(number: int | None, world_size: int = 2, *, step: int = 5) -> TraceBuilder:
    trace = TraceBuilder(number, world_size).step(step, 0, 1000).gpu(GEMM, 10, 500, launch=5)
    return trace.collective(500, 600).step(step + 1, 1000, 2000)


def test_python_has_the_same_analysis_as_the_command(tmp_path: Path) -> None:
    rank(0).write(tmp_path / "rank-0.json")
    assert torch_trace.analyze(tmp_path) == analyze(tmp_path)
    assert torch_trace.analyze(str(tmp_path / "rank-0.json")).ranks[0].rank == 0


def test_ranks_are_ascending_and_missing_ones_are_named(tmp_path: Path) -> None:
    for number in (10, 2, 0):
        rank(number, 12).write(tmp_path / f"rank-{number:02d}.json")
    analysis = analyze(tmp_path)
    assert [one.rank for one in analysis.ranks] == [0, 2, 10]
    assert analysis.missing_ranks == (1, 3, 4, 5, 6, 7, 8, 9, 11)


def test_the_trace_s_own_word_beats_its_name_and_the_name_beats_nothing(tmp_path: Path) -> None:
    rank(3, 8).write(tmp_path / "a_rank_1.json")
    rank(None).write(tmp_path / "b_rank_6.json")
    rank(None).write(tmp_path / "c.json")
    assert [one.rank for one in analyze(tmp_path).ranks] == [0, 3, 6]


def test_two_traces_of_one_rank_are_an_error_that_names_both(tmp_path: Path) -> None:
    one, other = (rank(0).write(tmp_path / name) for name in ("a.json", "b.json"))
    with pytest.raises(UsageError, match="both are rank 0") as error:
        analyze(tmp_path)
    assert str(one) in str(error.value)
    assert str(other) in str(error.value)


def test_one_bad_rank_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    rank(0).write(tmp_path / "rank-0.json")
    TraceBuilder(1, 2).op("aten::mm", 0, 10).write(tmp_path / "rank-1.json")
    (tmp_path / "rank-2.json.tmp").write_text("{")
    (tmp_path / "notes.txt").write_text("not a trace")
    analysis = analyze(tmp_path)
    assert [one.rank for one in analysis.ranks] == [0]
    reasons = {Path(one.file).name: one.reason for one in analysis.skipped_files}
    assert reasons["rank-1.json"] == "holds neither ProfilerStep nor GPU work."
    assert set(reasons) == {"rank-1.json", "rank-2.json.tmp", "notes.txt"}


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (OSError(errno.EIO, "Input/output error"), "cannot be read (Input/output error)."),
        (RuntimeError("a reader died"), "cannot be analysed (RuntimeError: a reader died)."),
    ],
)
def test_a_rank_that_fails_in_the_middle_is_reported_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception, reason: str
) -> None:
    for number in range(2):
        rank(number).write(tmp_path / f"rank-{number}.json")
    read = rank_pool.analyse_rank

    def failing(path: Path, **how: Any) -> Any:
        if path.name == "rank-1.json":
            raise fault
        return read(path, **how)

    monkeypatch.setattr(rank_pool, "analyse_rank", failing)
    analysis = analyze(tmp_path, jobs=1)
    assert [one.rank for one in analysis.ranks] == [0]
    assert [one.reason for one in analysis.skipped_files] == [reason]


def test_a_damaged_rank_is_analysed_as_far_as_it_goes_and_says_so(tmp_path: Path) -> None:
    text = rank(0).text()
    (tmp_path / "rank-0.json").write_text(text[: text.index('"ProfilerStep#6"')])
    (one,) = analyze(tmp_path).ranks
    assert one.damage is not None
    assert "truncated" in one.repairs
    assert one.breakdown is not None
    with pytest.raises(StrictError):
        analyze(tmp_path, strict=True)


def test_events_of_odd_types_go_the_slow_road_and_are_counted_all_the_same(tmp_path: Path) -> None:
    trace = rank(0)
    trace.slice("kernel", GEMM, 700, 50, pid=0, tid=7, args={"correlation": "x", "device": 0})
    trace.slice("kernel", GEMM, 800, 50, pid=0, tid=7, args={"device": 0.0, "stream": 7})
    text = trace.text().replace('"tid": 42', '"tid": 42.0')
    (tmp_path / "rank-0.json").write_text(text)
    (one,) = analyze(tmp_path).ranks
    assert one.breakdown is not None
    assert one.breakdown.compute == 590


def test_what_a_run_keeps_beside_its_windows_is_no_stranger(tmp_path: Path) -> None:
    rank(0).write(tmp_path / "iter-0000003" / "rank-0.pt.trace.json")
    for name in ("run.json", "metrics.jsonl", "iter-0000003/artifacts/rank-0.stacks.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}\n")
    assert analyze(tmp_path).skipped_files == ()


def test_a_merged_trace_is_refused_with_a_sentence(tmp_path: Path) -> None:
    own = {"merged": {"ranks": [{"rank": 0}, {"rank": 1}]}}
    path = (
        TraceBuilder(None, own=own)
        .step(1, 0, 10)
        .gpu(GEMM, 0, 5, launch=0)
        .write(tmp_path / "merged.json")
    )
    with pytest.raises(UsageError, match="a merged trace, good for viewing only; name the traces"):
        analyze(path)


def test_only_the_ranks_asked_for(tmp_path: Path) -> None:
    for number in range(3):
        rank(number, 3).write(tmp_path / f"rank-{number}.json")
    analysis = analyze(tmp_path, ranks=[1])
    assert [one.rank for one in analysis.ranks] == [1]
    assert analysis.missing_ranks is None
    with pytest.raises(
        UsageError, match="--rank 7: there is no trace of this rank; there are 0, 1, 2"
    ):
        analyze(tmp_path, ranks=[7])


def test_only_the_step_asked_for(tmp_path: Path) -> None:
    rank(0).write(tmp_path / "rank-0.json")
    (one,) = analyze(tmp_path, step=5).ranks
    assert [step.step for step in one.steps] == [5]
    assert one.window_ns == 1000
    with pytest.raises(
        TorchTraceError, match=r"--step 9: .* has no such step; the trace has 5, 6\."
    ) as e:
        analyze(tmp_path, step=9)
    assert e.value.exit_status == 2


def test_several_windows_in_one_folder_are_not_mixed(tmp_path: Path) -> None:
    for window in ("iter-0000003", "iter-0000007"):
        rank(0).write(tmp_path / window / "rank-0.pt.trace.json")
    with pytest.raises(UsageError, match=r"holds 2 windows .iter-0000003, iter-0000007.; name one"):
        analyze(tmp_path)
    assert len(analyze(tmp_path / "iter-0000003").ranks) == 1


def test_a_path_that_is_not_there_is_an_error() -> None:
    with pytest.raises(UsageError, match="no such file or folder"):
        analyze("/no/such/trace.json")


def test_the_answer_is_the_same_with_one_process_and_with_two(samples: Path) -> None:
    folder = samples / "analysis" / "dp4-rank2-slow"
    assert analyze(folder, jobs=1) == analyze(folder, jobs=2)


def test_a_process_that_dies_costs_its_own_rank_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [rank(n, 3).write(tmp_path / f"rank-{n}.json") for n in range(3)]
    # Importable by the reading processes, which are told where this process finds its modules.
    (tmp_path / "dying_reader.py").write_text(
        "import os\n"
        "from megatron.torch_trace.analysis.run.rank_pool import _attempt\n"
        "def attempt(path, **more):\n"
        "    if path.name == 'rank-1.json':\n"
        "        os._exit(9)\n"
        "    return _attempt(path, **more)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import dying_reader  # type: ignore[import-not-found]

    monkeypatch.setattr(rank_pool, "_attempt", dying_reader.attempt)
    outcomes = dict(analyse_ranks(paths, jobs=2))
    assert [isinstance(outcomes[p], TorchTraceError) for p in paths] == [False, True, False]
    assert "the process that read this file died" in str(outcomes[paths[1]])


def test_neither_memory_nor_cores_are_taken_that_are_not_there(
    samples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = sorted((samples / "analysis" / "ep4-moe").iterdir())
    monkeypatch.setattr(rank_pool, "available_cores", lambda most: min(most, 8))
    monkeypatch.setattr(rank_pool, "host_memory", lambda: HostMemory(1 << 40, 0))
    assert rank_pool._jobs(paths) == 8
    monkeypatch.setattr(rank_pool, "host_memory", lambda: HostMemory(250 << 20, 0))
    assert rank_pool._jobs(paths) == 2
    monkeypatch.setattr(rank_pool, "host_memory", lambda: HostMemory(8 << 30, 8 << 30))
    assert rank_pool._jobs(paths) == 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_the_cores_are_those_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    from megatron.torch_trace.reader import available_cores

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    assert available_cores(most=64) == 1


def test_every_table_is_a_polars_frame(samples: Path) -> None:
    frames = analyze(samples / "tp2pp2").to_polars()
    assert set(frames) == {
        "breakdown", "steps", "communication", "kernels", "families", "operators", "shapes",
        "modules", "module_classes", "module_account", "stages", "stage_layers", "stage_classes",
        "phases", "microbatches", "bubble", "syncs", "data_loading", "loop_paths", "pipeline",
        "stragglers", "clocks", "findings",
    }  # fmt: skip
    parts = frames["breakdown"]
    total = parts["compute_ns"] + parts["exposed_communication_ns"] + parts["exposed_memory_ns"]
    assert (total + parts["idle_ns"] == parts["window_ns"]).all()
    assert sorted(frames["communication"]["rank"].unique()) == [0, 1, 2, 3]


def test_the_name_of_a_copied_file_does_not_matter(samples: Path, tmp_path: Path) -> None:
    source = samples / "tp2pp2" / "rank-2.pt.trace.json.gz"
    shutil.copy(source, tmp_path / "whatever")
    assert analyze(tmp_path / "whatever").ranks[0].rank == 2


def test_a_host_whose_name_is_no_text_has_none(tmp_path: Path) -> None:
    for host, name in (("node7", "node7"), ({"name": "node7"}, None), (7, None)):
        trace = TraceBuilder(own={"host": host}).step(1, 0, 1000).gpu(GEMM, 10, 20, launch=5)
        (rank,) = analyze(trace.write(tmp_path / "rank-0.json")).ranks
        assert rank.host_name == name
