# SPDX-License-Identifier: Apache-2.0
"""Commands short of disk, files or memory, with odd inputs and names: a sentence, nothing left."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from interrupted_runs import run, unfinished
from test_stopped_commands import COMMANDS, DATA, Sandbox, is_clean

pytestmark = pytest.mark.skipif(
    shutil.which("prlimit") is None, reason="prlimit, of util-linux, sets the limits"
)
WRITERS = ["convert", "decompress", "export", "keep", "merge", "report", "slim"]


@pytest.mark.parametrize("name", WRITERS)
def test_a_disk_that_takes_no_more_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, name: str
) -> None:
    box = Sandbox(tmp_path / "box")
    arguments = COMMANDS[name](box)
    before = box.names()
    ended = run(arguments, tmp_path, wrapper=["prlimit", "--fsize=4096"])
    assert ended.status == 1, ended
    assert ended.stderr.count("\n") == 1
    assert "cannot be written (File too large)" in ended.stderr
    assert is_clean(ended)
    assert box.names() - before <= {"20260101-000000/iter-0000006/artifacts"}


@pytest.mark.parametrize("limit", ["--nofile=8", "--nofile=14", "--as=400000000"])
def test_few_files_and_little_memory_end_in_an_answer_or_a_sentence(
    tmp_path: Path, limit: str
) -> None:
    for name in ("analyze", "merge"):
        box = Sandbox(tmp_path / name)
        arguments = COMMANDS[name](box)
        ended = run(arguments, tmp_path, wrapper=["prlimit", limit])
        assert ended.status in (0, 1), ended
        assert is_clean(ended), ended
        assert unfinished(tmp_path) == []


ODD = {
    "pipe": "is a pipe, which can be read only once; name - and pass the trace as standard input",
    "zero": "is a device, and no trace",
    "loop": "is a link that leads back to itself",
    "lost": "is a link to a file that does not exist",
}


@pytest.mark.parametrize("name", sorted(ODD))
def test_what_is_no_file_is_said_by_every_command_and_nobody_waits_for_it(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from megatron.torch_trace.commands import run as run_here

    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "lost").symlink_to("nowhere")
    odd, out = str(tmp_path / name), str(tmp_path / "out")
    for command in (
        ["info", odd], ["check", odd], ["analyze", odd], ["analyze", "--partials", odd],
        ["report", odd, "-o", out], ["convert", odd, "-o", out], ["export", odd, "-o", out],
        ["merge", odd, "-o", out], ["decompress", odd], ["slim", odd, "-o", out],
        ["sql", odd, "select * from ranks"],
    ):  # fmt: skip
        monkeypatch.setattr(sys, "argv", ["torch-trace", *command])
        assert run_here() == 2
        assert capsys.readouterr().err == f"torch-trace: {odd}: {ODD[name]}.\n"
    assert not Path(out).exists()


def test_a_folder_of_strangers_is_told_in_few_lines_and_links_in_a_ring_are_not_followed(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(DATA / "rank-0.pt.trace.json.gz", folder)
    (folder / "again").symlink_to(folder)
    os.mkfifo(folder / "pipe.json")
    for number in range(1000):
        (folder / f"{number}.txt").write_text("note")
    ended = run(["info", folder], tmp_path)
    assert ended.status == 0, ended
    assert ended.stdout.count("Skipped") == 11
    assert "Skipped 990 more files." in ended.stdout


def test_zeros_without_end_fill_no_disk(tmp_path: Path) -> None:
    with Path("/dev/zero").open("rb") as zeros:
        ended = run(["decompress", "-", "-o", tmp_path / "out.json"], tmp_path, source=zeros)
    assert ended.status == 2
    assert ended.stderr == (
        "torch-trace: -: no trace: nothing but blanks and zeros at its beginning.\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name",
    [
        pytest.param('a\nb "q" $(touch run) <b>x [bold] \x1b[31m', id="control characters"),
        pytest.param(os.fsdecode(b"not \xff\xfe utf-8"), id="not UTF-8"),
        pytest.param("=cmd|'x'!A1", id="a formula"),
    ],
)
def test_names_are_shown_as_they_are_without_what_a_terminal_obeys(
    tmp_path: Path, name: str
) -> None:
    folder = tmp_path / name
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this disk does not take such a name")
    shutil.copy(DATA / "rank-0.pt.trace.json.gz", folder)
    (folder / f"{name.replace('/', '')}.txt").write_text("note")
    out = tmp_path / "out"
    for command in (
        ["info", folder], ["info", "--json", folder], ["analyze", folder],
        ["analyze", "--json", folder], ["report", folder, "-o", f"{out}.html"],
        ["convert", folder, "-o", f"{out}.pftrace"], ["export", folder, "-o", out],
    ):  # fmt: skip
        ended = run(command, tmp_path)
        assert ended.status in (0, 3), ended
        assert is_clean(ended), ended
        assert "\x1b" not in ended.stdout + ended.stderr
    assert not (tmp_path / "run").exists()
