# SPDX-License-Identifier: Apache-2.0
"""What is kept of a rank stands in for its trace when it may, and never when it may not."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import polars as pl
import pytest
from analyze_document import document
from kept_windows import trace, window_of_two
from trace_builder import GEMM

from megatron.torch_trace.analysis.run import kept_analyses, kept_analysis, rank_pool
from megatron.torch_trace.analysis.run.analyse import analyze
from megatron.torch_trace.analysis.run.kept_analyses import keep
from megatron.torch_trace.errors import StrictError, TorchTraceError, UsageError
from megatron.torch_trace.format.file_names import kept_analysis_of


@pytest.fixture
def window(tmp_path: Path) -> Path:
    return window_of_two(tmp_path)


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces of a few events need no processes of their own."""
    monkeypatch.setattr(rank_pool, "_jobs", lambda _: 1)


def answer(folder: Path, **how: bool) -> str:
    return json.dumps(document(analyze(folder, **how)))  # type: ignore[arg-type]


def lines(log: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in log.records if record.levelno >= logging.WARNING]
    log.clear()
    return found


def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on no trace is read."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a trace was read")

    monkeypatch.setattr("megatron.torch_trace.analysis.run.rank_pool.analyse_rank", refuse)


def test_the_answer_from_partials_is_the_same_to_the_byte_and_reads_no_trace(
    window: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    direct = answer(window)
    assert len(keep([window]).written) == 2
    unread(monkeypatch)
    assert answer(window) == direct
    assert lines(caplog) == []


@pytest.mark.parametrize("sample", ["analysis/dp4-rank2-slow", "pp2-recompute-spans"])
def test_recorded_traces_give_the_same_from_partials_also_when_they_are_gone(
    samples: Path, tmp_path: Path, sample: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / Path(sample).name
    shutil.copytree(samples / sample, folder)
    direct = analyze(folder, use_partials=False)
    kept = keep([folder])
    assert analyze(folder) == direct
    for path in kept.traces:
        path.unlink()
    gone = analyze(folder)
    assert json.dumps(document(gone)) == json.dumps(document(direct))
    assert lines(caplog) == [
        f"torch-trace: {len(kept.traces)} traces are gone; their kept analyses are used instead."
    ]


def test_partials_lie_where_no_viewer_of_traces_looks(window: Path) -> None:
    keep([window])
    assert [path.name for path in sorted(window.iterdir())] == [
        "artifacts",
        "rank-0.pt.trace.json",
        "rank-1.pt.trace.json",
    ]
    assert sorted(path.name for path in (window / "artifacts").iterdir()) == [
        "rank-0.pt.trace.json.analysis.parquet",
        "rank-1.pt.trace.json.analysis.parquet",
    ]


def test_the_columns_of_a_partial_are_the_rank_s_calls(window: Path) -> None:
    keep([window])
    whole = pl.read_parquet(window / "artifacts" / "*.parquet")
    assert len(whole) == 6
    frame = pl.read_parquet(kept_analysis_of(window / "rank-1.pt.trace.json"))
    assert frame.columns == ["start", "end", "kind", "step", "bytes", "elements", "seq"]
    assert (frame["end"] - frame["start"]).to_list() == [20, 20, 20]
    assert frame["bytes"].to_list() == [2000, 2000, 2000]


def test_a_copy_of_traces_and_partials_is_as_good(
    window: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keep([window])
    copy = tmp_path / "elsewhere"
    shutil.copytree(window, copy, copy_function=shutil.copyfile)  # without the times
    unread(monkeypatch)
    assert len(analyze(copy).ranks) == 2
    assert lines(caplog) == []


def test_a_trace_that_changed_is_read_again(window: Path, caplog: pytest.LogCaptureFixture) -> None:
    keep([window])
    trace(1).gpu(GEMM, 1500, 1600, launch=1400).write(window / "rank-1.pt.trace.json")
    assert answer(window) == answer(window, use_partials=False)
    assert lines(caplog) == [
        "torch-trace: 1 kept analysis is not used (1 stale); the traces are read instead."
    ]
    assert [path.name for path in keep([window]).written] == ["rank-1.pt.trace.json"]
    assert answer(window) == answer(window, use_partials=False)
    assert lines(caplog) == []


def test_damaged_partials_are_noticed_and_counted(
    window: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep([window])
    cut, empty = (kept_analysis_of(window / f"rank-{rank}.pt.trace.json") for rank in range(2))
    cut.write_bytes(cut.read_bytes()[:-50])
    empty.write_bytes(b"")
    assert answer(window) == answer(window, use_partials=False)
    assert lines(caplog) == [
        "torch-trace: 2 kept analyses are not used (2 damaged); the traces are read instead."
    ]


def test_a_damaged_partial_that_polars_stumbles_over_is_noticed_too(
    window: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def stumble(*_: object, **__: object) -> None:
        raise pl.exceptions.PanicException("assertion failed")

    keep([window])
    monkeypatch.setattr(pl, "read_parquet", stumble)
    assert answer(window) == answer(window, use_partials=False)
    assert lines(caplog) == [
        "torch-trace: 2 kept analyses are not used (2 damaged); the traces are read instead."
    ]


def test_a_kept_analysis_of_another_version_is_not_used(
    window: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keep([window])
    monkeypatch.setattr(kept_analysis, "version", lambda: "0.0.0+1.0123456789abcdef")
    assert answer(window) == answer(window, use_partials=False)
    (line,) = lines(caplog)
    assert "2 of another version" in line


def test_the_kept_analysis_of_another_rank_does_not_stand_in(
    window: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep([window])
    first, second = (window / f"rank-{rank}.pt.trace.json" for rank in range(2))
    shutil.copyfile(kept_analysis_of(first), kept_analysis_of(second))
    assert answer(window) == answer(window, use_partials=False)
    assert "1 of another trace" in lines(caplog)[0]
    second.unlink()
    analysis = analyze(window)
    assert [rank.rank for rank in analysis.ranks] == [0]
    assert [one.reason for one in analysis.skipped_files] == [
        "gone, and its kept analysis is of another trace"
    ]


@pytest.mark.parametrize(
    ("folder", "reason"),
    [
        ("20261128-010203/iter-0000005-0000006", "of another run"),
        ("20261127-221810/iter-0000009", "of another window"),
    ],
)
def test_a_partial_from_elsewhere_does_not_stand_in_for_a_trace_that_is_gone(
    window: Path, tmp_path: Path, folder: str, reason: str
) -> None:
    other = tmp_path / folder / "rank-7.pt.trace.json"
    trace(7, run=Path(folder).parent.name).write(other)
    keep([window, other.parent])
    for path in window.glob("*.json"):
        path.unlink()
    shutil.copy(kept_analysis_of(other), window / "artifacts")
    analysis = analyze(window)
    assert [rank.rank for rank in analysis.ranks] == [0, 1]
    assert [one.reason for one in analysis.skipped_files] == [
        f"gone, and its kept analysis is {reason}"
    ]


def test_one_step_is_read_from_the_traces(window: Path, caplog: pytest.LogCaptureFixture) -> None:
    keep([window])
    assert [step.step for step in analyze(window, step=5).ranks[0].steps] == [5]
    assert "2 of the whole window, not of one step" in lines(caplog)[0]


def test_partials_of_damaged_traces_say_so_and_are_refused_where_damage_is(window: Path) -> None:
    path = window / "rank-1.pt.trace.json"
    path.write_text(trace(1).text()[:-200])
    kept = keep([window])
    assert kept.damaged == [path]
    assert [rank.damage is None for rank in analyze(window).ranks] == [True, False]
    with pytest.raises(StrictError):
        analyze(window, strict=True)
    path.unlink()
    with pytest.raises(StrictError, match=r"rank-1\.pt\.trace\.json: damaged"):
        analyze(window, strict=True)


def test_a_trace_named_by_itself_may_be_gone_too(window: Path) -> None:
    keep([window])
    path = window / "rank-1.pt.trace.json"
    path.unlink()
    assert [rank.rank for rank in analyze(path).ranks] == [1]
    assert [rank.rank for rank in analyze(kept_analysis_of(path)).ranks] == [1]
    with pytest.raises(UsageError, match="no such file"):
        analyze(path, use_partials=False)


def test_keeping_again_analyses_only_what_is_new(window: Path) -> None:
    keep([window])
    trace(2).write(window / "rank-2.pt.trace.json")
    kept = keep([window])
    assert [path.name for path in kept.written] == ["rank-2.pt.trace.json"]
    assert kept.fresh == 2


def test_nothing_is_left_to_keep_of_traces_that_are_gone(window: Path) -> None:
    keep([window])
    for path in window.glob("*.json"):
        path.unlink()
    kept = keep([window])
    assert (len(kept.traces), kept.written, kept.fresh, kept.skipped) == (2, [], 2, [])


def test_every_window_of_a_run_is_kept(window: Path) -> None:
    trace(0).write(window.parent / "iter-0000009" / "rank-0.pt.trace.json")
    kept = keep([window.parent])
    assert len(kept.written) == 3
    assert [path.name for path in kept.windows] == ["iter-0000005-0000006", "iter-0000009"]
    with pytest.raises(UsageError, match="holds 2 windows"):
        analyze(window.parent)


def test_a_trace_that_is_replaced_while_it_is_read_keeps_nothing(
    window: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = window / "rank-0.pt.trace.json"
    read = kept_analyses.analyse_ranks

    def replaced_meanwhile(*args: object, **how: object) -> object:
        for one, outcome in read(*args, **how):  # type: ignore[arg-type]
            trace(0).gpu(GEMM, 1500, 1600, launch=1400).write(path)
            yield one, outcome

    monkeypatch.setattr(kept_analyses, "analyse_ranks", replaced_meanwhile)
    kept = keep([path])
    assert [one.reason for one in kept.skipped] == ["the trace changed while it was read"]
    assert not kept_analysis_of(path).exists()


def test_a_folder_that_cannot_be_written_is_a_sentence(window: Path) -> None:
    (window / "artifacts").write_text("in the way")
    with pytest.raises(TorchTraceError, match=r"analysis\.parquet: cannot be written \("):
        keep([window])
