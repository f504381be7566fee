# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  (a sentence that users read stands on one line)
"""Exit status of every command, its one sentence where it refuses, and no file left behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command_line import last_line, run
from small_traces import CLEAN
from trace_builder import strict, write


@pytest.mark.parametrize("command", ["info", "check", "decompress", "slim", "merge"])
def test_help_says_what_a_command_does(command: str) -> None:
    shown = run(command, "--help")
    assert shown.returncode == 0
    assert shown.stdout.startswith(f"Usage: torch-trace {command}".encode())


@pytest.mark.parametrize("command", ["check", "info", "decompress", "slim"])
def test_damage_under_strict_is_status_4_without_output(command: str, broken: Path) -> None:
    out = broken.with_name("out.json")
    more = ("-o", out, "--repair") if command == "decompress" else ("-o", out)
    result = run(command, broken, "--strict", *(more if command in ("decompress", "slim") else ()))
    assert result.returncode == 4
    assert sorted(p.name for p in broken.parent.iterdir()) == ["rank-1.json.gz"]


def test_slim_and_decompress_write_what_is_whole_and_exit_3(broken: Path) -> None:
    for command in (["slim"], ["decompress", "--repair"]):
        result = run(*command, broken, "-o", broken.with_name("out.json"), "--force")
        assert result.returncode == 3
        assert b"stray backslashes" in result.stderr
        names = [
            e["name"] for e in strict(broken.with_name("out.json").read_bytes())["traceEvents"]
        ]
        assert names == [r"C:\Users", "x"]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["info", "nowhere.json"], "nowhere.json: no such file or folder."),
        (["slim", "{clean}", "-o", "{clean}"], "{clean}: exists already; choose another name or pass --force."),
        (["slim", "{clean}", "-o", "{here}/no/out.json"], "{here}/no: no such folder; create it or choose another --output."),
        (["slim", "{clean}", "-o", "{here}/o.json", "--step", "4"], "--step 4: {clean} has no ProfilerStep#4; the trace marks no steps."),
        (["slim", "{clean}", "-o", "{here}/o.json", "--rank", "4"], "--rank: is for merged traces, and {clean} holds only one rank."),
        (["merge", "{clean}", "-o", "{here}/o.json"], "merge: needs at least two ranks, got 1."),
        (["merge", "{clean}", "-o", "{here}/o.json", "--ranks", "a"], "--ranks a: not a list of ranks; write 0,1,...: one a trace."),
        (["merge", "{clean}", "-o", "{here}/o.json", "--only", "4"], "--only 4: there is no trace of this rank; there are 3."),
        (["merge", "{here}/run", "-o", "{here}/o.json"], "{here}/run: holds 2 windows (iter-0000003, iter-0000005); name one of these folders."),
        (["slim", "{clean}", "-o", ""], "--output: is empty; name the file to write."),
        (["info", "{here}/log.txt"], "{here}/log.txt: no trace: neither a JSON object nor an array of events."),
        (["decompress", "{here}/log.txt"], "{here}/log.txt: no trace: neither a JSON object nor an array of events."),
        (["decompress", "{here}/nothing.gz"], "{here}/nothing.gz: no trace: the file is empty."),
        (["slim", "{here}/empty", "-o", "{here}/o.json"], "{here}/empty: is a folder, and slim takes one trace; name a file in the folder."),
        (["convert", "{clean}", "-o", "{here}/o.json.gz"], "--output {here}/o.json.gz: a timeline is not JSON; name the file .pftrace.gz, or write JSON with `torch-trace merge`."),
        (["analyse", "{clean}"], "analyse: no such command; did you mean analyze?"),
        (["info", "{here}/empty"], "{here}/empty: holds no trace (every file in this folder and below was looked at)."),
    ],
)  # fmt: skip
def test_a_mistake_is_status_2_and_one_sentence(
    clean: Path, args: list[str], sentence: str
) -> None:
    here = clean.parent
    (here / "log.txt").write_text("iteration 1")
    (here / "nothing.gz").write_bytes(b"")
    for window in ("iter-0000003", "iter-0000005"):
        (here / "run" / window).mkdir(parents=True)
        write(here / "run" / window / "rank-0.json.gz", CLEAN)
    (here / "empty").mkdir()
    before = sorted(here.iterdir())
    result = run(*[arg.format(clean=clean, here=here) for arg in args])
    assert result.returncode == 2
    assert result.stderr.decode() == f"torch-trace: {sentence.format(clean=clean, here=here)}\n"
    assert sorted(here.iterdir()) == before


def test_a_flag_that_does_not_exist_is_status_2(clean: Path) -> None:
    result = run("info", clean, "--colour")
    assert result.returncode == 2
    assert b"No such option" in result.stderr


@pytest.mark.parametrize("command", ["slim", "decompress", "merge", "convert", "report", "export"])
def test_a_pipe_or_a_device_is_never_replaced(clean: Path, command: str) -> None:
    pipe = clean.with_name("pipe")
    os.mkfifo(pipe)
    result = run(command, clean, "-o", pipe, "--force")
    assert result.returncode == 2
    assert last_line(result.stderr) == (
        f"torch-trace: --output {pipe}: is a device or a pipe, which would be replaced; name a file, or - for standard output."
    )
    assert pipe.is_fifo()
