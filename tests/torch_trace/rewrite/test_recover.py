# SPDX-License-Identifier: Apache-2.0
"""`torch-trace recover`: what killed processes left is completed, and nothing is made worse."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
from click.testing import Result
from command_line import invoked
from trace_builder import event, read, text
from written_files import files_below

from megatron.torch_trace.errors import DamagedTraceError
from megatron.torch_trace.format.file_names import DESTINATION_FILE, UnfinishedName

WHOLE = text(*[event(ts=n * 1000) for n in range(3)])
TRACE = "rank-3.pt.trace.json.gz"
RAW = f"{TRACE}.4242.json.tmp"
WINDOW = Path("20260101-000000-j17/iter-0000003-0000004")


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """The folder of one trace on a node's scratch folder."""
    folder = tmp_path / "node" / "20260101-000000-j17.iter-0000003-0000004.rank-3"
    folder.mkdir(parents=True)
    (folder / DESTINATION_FILE).write_text(f"{tmp_path / 'traces' / WINDOW}\n")
    return folder


def run(*arguments: str | Path) -> Result:
    return invoked("recover", *arguments)


def events(path: Path) -> int:
    return len(read(path)["traceEvents"])


@pytest.mark.parametrize("compression", ["gz", "zst"])
def test_whole_text_on_scratch_goes_where_it_belongs(
    scratch: Path, tmp_path: Path, compression: str
) -> None:
    trace = f"rank-3.partial.pt.trace.json.{compression}"
    (scratch / f"{trace}.4242.json.tmp").write_bytes(WHOLE)
    (scratch / f"{trace}.4243.tmp").write_bytes(b"begun")
    result = run(tmp_path / "node")
    assert result.exit_code == 0, result.output
    assert files_below(tmp_path) == [f"traces/{WINDOW}/{trace}"]
    assert not (tmp_path / "node").exists(), "scratch in which nothing is left is removed"


def test_a_compressed_trace_that_was_not_copied_back_is(scratch: Path, tmp_path: Path) -> None:
    (scratch / f"{TRACE}.4243.tmp").write_bytes(gzip.compress(WHOLE))
    assert run(tmp_path / "node").exit_code == 0
    assert files_below(tmp_path) == [f"traces/{WINDOW}/{TRACE}"]
    assert events(tmp_path / "traces" / WINDOW / TRACE) == 3


def test_text_that_was_cut_becomes_a_partial_trace_and_stays(scratch: Path, tmp_path: Path) -> None:
    (scratch / RAW).write_bytes(WHOLE[:-40])
    result = run(tmp_path / "node")
    assert isinstance(result.exception, DamagedTraceError)
    partial = tmp_path / "traces" / WINDOW / "rank-3.partial.pt.trace.json.gz"
    assert events(partial) == 2
    assert (scratch / RAW).exists()
    again = run(tmp_path / "node")
    assert again.exit_code == 0
    assert f"left as it is: {partial} exists" in again.output


def test_a_compressed_file_that_was_cut_becomes_a_partial_trace(
    scratch: Path, tmp_path: Path
) -> None:
    whole = gzip.compress(text(*[event(ts=n * 1000) for n in range(3003)]), compresslevel=1)
    (scratch / f"{TRACE}.4243.tmp").write_bytes(whole[: len(whole) // 2])
    result = run(tmp_path / "node")
    assert isinstance(result.exception, DamagedTraceError)
    partial = tmp_path / "traces" / WINDOW / "rank-3.partial.pt.trace.json.gz"
    assert 3 < events(partial) < 3003
    assert files_below(tmp_path / "traces") == [f"{WINDOW}/{partial.name}"]


def test_a_trace_that_is_there_is_never_overwritten(scratch: Path, tmp_path: Path) -> None:
    target = tmp_path / "traces" / WINDOW / TRACE
    target.parent.mkdir(parents=True)
    target.write_bytes(b"mine")
    (scratch / RAW).write_bytes(WHOLE)
    assert f"left as it is: {target} exists" in run(tmp_path / "node").output
    assert target.read_bytes() == b"mine"
    assert (scratch / RAW).exists()


def test_what_somebody_still_writes_to_is_left_alone(scratch: Path, tmp_path: Path) -> None:
    (scratch / RAW).write_bytes(WHOLE)
    with (scratch / RAW).open("ab"):
        assert "a process still writes to this file" in run(tmp_path / "node").output
    assert files_below(scratch) == [DESTINATION_FILE, RAW]


def test_another_folder_of_runs_can_be_named(scratch: Path, tmp_path: Path) -> None:
    (scratch / RAW).write_bytes(WHOLE)
    assert run(tmp_path / "node", "-o", tmp_path / "elsewhere").exit_code == 0
    assert files_below(tmp_path) == [f"elsewhere/{WINDOW}/{TRACE}"]


def test_in_a_run_itself_only_what_is_old_is_completed(tmp_path: Path) -> None:
    window = tmp_path / WINDOW
    window.mkdir(parents=True)
    for rank in (0, 1):
        name = window / f"rank-{rank}.pt.trace.json.gz.4242.json.tmp"
        name.write_bytes(WHOLE)
    os.utime(window / "rank-0.pt.trace.json.gz.4242.json.tmp", (0, 0))
    result = run(tmp_path)
    assert "rank-1.pt.trace.json.gz.4242.json.tmp: left as it is: a process" in result.output
    assert files_below(window) == [
        "rank-0.pt.trace.json.gz",
        "rank-1.pt.trace.json.gz.4242.json.tmp",
    ]


def test_a_dry_run_says_and_does_nothing(scratch: Path, tmp_path: Path) -> None:
    (scratch / RAW).write_bytes(WHOLE)
    before = files_below(tmp_path)
    assert f"would be saved as {tmp_path / 'traces' / WINDOW / TRACE}" in run("-n", tmp_path).output
    assert files_below(tmp_path) == before


def test_nothing_unfinished_is_said(tmp_path: Path) -> None:
    (tmp_path / "notes.tmp").touch()
    result = run(tmp_path)
    assert result.exit_code == 0
    assert "no trace is unfinished" in result.output
    assert (tmp_path / "notes.tmp").exists()


@pytest.mark.parametrize(
    "name",
    [
        UnfinishedName("rank-07.partial.pt.trace.json.zst", 42, raw=True),
        UnfinishedName("rank-0.pt.trace.json", 42, raw=True),
        UnfinishedName("rank-0.pt.trace.json", 42, raw=False),
    ],
    ids=str,
)
def test_names_of_unfinished_traces_are_read_as_they_are_written(name: UnfinishedName) -> None:
    assert UnfinishedName.parse(str(name)) == name
    assert UnfinishedName.parse(f"x{name}") is None
    assert UnfinishedName.parse(f"{name}.tmp") == (name if name.raw else None), "Kineto's own"
