# SPDX-License-Identifier: Apache-2.0
"""Values that nobody writes, found by scripts/fuzz.py: an answer or a sentence, no traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import run
from trace_builder import GEMM, HEADER, TraceBuilder, kernel, launch, metadata, step, text, write

from megatron.torch_trace.analysis.run.analyse import analyze
from megatron.torch_trace.flight_recorder.call_names import call_words
from megatron.torch_trace.flight_recorder.record import Call
from megatron.torch_trace.format.json_text import value_of

DEEP = "[" * 100_000 + "]" * 100_000
LONG = "9" * 5_000
WORK = [
    step(1, 100_000, 1_000_000),
    launch(110_000, 115_000, 7),
    kernel("gemm", 120_000, 150_000, 7),
]
READ = [
    ("analyze", "--json"), ("info", "--json"), ("check", "--json"), ("convert", "-o", "o.pftrace"),
    ("export", "-o", "tables"), ("merge", "-o", "o.json"), ("slim", "-o", "s.json"),
    ("report", "-o", "o.html"), ("operators", "--json"),
]  # fmt: skip


def answers(path: Path, monkeypatch: pytest.MonkeyPatch, *statuses: int) -> None:
    """Every command ends as it should, and says nothing of Python."""
    monkeypatch.chdir(path.parent)
    other = write(
        path.parent / "rank-4.json", text(*WORK, header=HEADER.replace('"rank": 3', '"rank": 4'))
    )
    for command, *options in READ:
        ended = run(command, path, *([other] if command == "merge" else []), *options)
        said = ended.stderr.decode()
        assert ended.returncode in statuses, (command, said)
        assert "Error" not in said, (command, said)


@pytest.mark.parametrize("base", ["1e999", "1" + "0" * 400, str(1 << 63), f"-{1 << 70}", LONG])
def test_a_base_time_that_64_bits_cannot_hold_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str
) -> None:
    header = HEADER.replace("1790857026000000000", base)
    assert base in header
    path = write(tmp_path / "rank-3.json", text(*WORK, header=header))
    answers(path, monkeypatch, 0)
    told = json.loads(run("info", path, "--json").stdout)
    assert told["traces"][0]["base_time_ns"] == 0


@pytest.mark.parametrize("name", ["tokens_per_iteration", "model_flops_per_iteration"])
@pytest.mark.parametrize("count", [10**400, -5, True])
def test_tokens_and_flops_that_no_iteration_has_are_unknown(
    tmp_path: Path, name: str, count: int
) -> None:
    builder = TraceBuilder(0, own={name: count}).step(5, 0, 1000)
    path = builder.gpu(GEMM, 10, 500, launch=5).write(tmp_path / "rank-0.json")
    analysis = analyze(path)
    (rank,) = analysis.ranks
    assert (rank.tokens, rank.model_flops, analysis.mfu.value) == (None, None, None)
    assert analysis.skipped_files == ()


@pytest.mark.parametrize("size", [0, -8, 1 << 21, 1 << 40, 1 << 70])
def test_a_world_of_more_ranks_than_any_job_has_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    header = HEADER.replace('"world_size": 8', f'"world_size": {size}')
    assert header != HEADER
    path = write(tmp_path / "rank-3.json", text(*WORK, header=header))
    answers(path, monkeypatch, 0)
    told = json.loads(run("analyze", path, "--json").stdout)
    assert told["ranks"][0]["world_size"] is None


@pytest.mark.parametrize("rank", [-1, 1 << 31, 10**30])
@pytest.mark.parametrize("name", ["trace.json", f"rank-{1 << 31}.json", "rank-9999999999999.json"])
def test_a_rank_that_no_job_has_is_unknown(tmp_path: Path, rank: int, name: str) -> None:
    header = HEADER.replace('"rank": 3', f'"rank": {rank}')
    path = write(tmp_path / name, text(*WORK, header=header))
    told = json.loads(run("info", path, "--json").stdout)
    assert told["traces"][0]["rank"] is None
    assert run("export", path, "-o", tmp_path / "tables").returncode == 0


def test_names_and_numbers_of_gpus_and_hosts_may_be_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = '"deviceProperties": [{"id": [0], "name": 7}, {"id": 0, "name": 8}], "torch_profile": '
    header = HEADER.replace('"schemaVersion"', odd + '{"host": 9}, "schemaVersion"')
    path = write(tmp_path / "rank-3.json", text(*WORK, header=header))
    answers(path, monkeypatch, 0)
    assert run("compare", path, path, "--json").returncode == 0


@pytest.mark.parametrize("size", [1 << 50, 10**25, 10**400, 1e308])
@pytest.mark.parametrize("argument", ["In msg nelems", "Out msg nelems", "Group size"])
def test_a_message_or_a_group_that_no_job_has_is_of_unknown_size(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, argument: str, size: float
) -> None:
    builder = TraceBuilder(0, 2).step(5, 0, 1000)
    for start in (100, 400):
        builder.gpu(GEMM, start, start + 50, launch=start - 20)
        builder.collective(start + 60, start + 90, **{argument: size})
    found = analyze(builder.write(tmp_path / "rank-0.pt.trace.json"), gains=True)
    assert (found.skipped_files, caplog.messages) == ((), [])
    (row,) = found.ranks[0].communication
    assert (row.calls, row.time_ns) == (2, 60)


def test_the_number_of_a_stream_may_be_as_large_as_an_address(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    builder = TraceBuilder(0, 2).step(5, 0, 1000)
    for start, stream in ((100, 7), (400, 1 << 50)):
        builder.gpu(GEMM, start, start + 50, launch=start - 20, stream=stream)
    found = analyze(builder.write(tmp_path / "rank-0.pt.trace.json"), gains=True)
    assert caplog.messages == []
    assert found.critical_path


def test_arguments_with_a_number_of_thousands_of_digits_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = metadata("thread_name", 42, 42, name="main").replace(
        '"name": "main"', f'"name": "main", "more": {LONG}'
    )
    assert LONG in named
    answers(write(tmp_path / "rank-3.json", text(*WORK, named)), monkeypatch, 0)


def test_json_that_python_cannot_follow_is_one_kind_of_error() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        value_of(DEEP)
    with pytest.raises(ValueError, match="Expecting"):
        value_of(f'{{"a": {LONG}')
    assert value_of(b'{"a": %s, "b": 12}' % LONG.encode()) == {"a": None, "b": 12}


def test_a_flight_record_that_is_nested_too_deeply_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "trace_rank_0"
    path.write_text(f'{{"entries": {DEEP}}}')
    ended = run("hang", path)
    assert (ended.returncode, ended.stdout) == (2, b"")
    assert ended.stderr.decode() == f"torch-trace: {path}: JSON that is not whole.\n"


def test_a_call_of_a_flight_record_without_a_group_has_its_name_alone() -> None:
    call = Call(0, "", 3, "all_reduce_", "", "scheduled", 0, "python", False, None, ())
    assert call_words(call, {}) == "all_reduce"


def test_a_pickle_that_contradicts_itself_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.memory_snapshot.pickle"
    path.write_bytes(b"\x80\x04}(\x8c\x08segmentsu.")
    ended = run("memory", path)
    assert (ended.returncode, ended.stdout) == (2, b"")
    assert ended.stderr.decode() == (
        f"torch-trace: {path}: is no pickle: its codes contradict each other; a snapshot is what "
        "torch.cuda.memory._dump_snapshot writes.\n"
    )


def test_lines_of_metrics_that_are_nested_too_deeply_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"plan": {"ranks": [0], "windows": []}}))
    line = json.dumps({"monitor/iteration": 7, "monitor/iteration_ms": 640.0})
    odd = f'{{"monitor/iteration": {DEEP}}}'
    (tmp_path / "metrics.jsonl").write_text(f"{line}\n{odd}\n")
    ended = run("status", tmp_path)
    assert (ended.returncode, ended.stderr) == (0, b"")
