# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  (a sentence that users read stands on one line)
"""Exit status of every command, its one sentence where it refuses, and no file left behind."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

import pytest
from command_line import last_line, run
from small_traces import CLEAN
from trace_builder import strict, write

from megatron.torch_trace.commands.terminal import interruption

TIMELINE = (
    "a timeline is for Perfetto; name the file .pftrace or .pftrace.gz (`torch-trace merge` writes "
    "JSON)"
)
REPORT = "a report is HTML or Markdown; name the file .html or .md"
TRACE = (
    "a trace is JSON; name the file .json, .json.gz or .json.zst (`torch-trace convert` writes "
    ".pftrace)"
)


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
        (["slim", "{clean}", "-o", "{here}/no/out.json"], "{here}/no: no such folder; create it, or write to another folder."),
        (["slim", "{clean}", "-o", "{here}/o.json", "--step", "4"], "--step 4: {clean} has no ProfilerStep#4; the trace has no steps."),
        (["slim", "{clean}", "-o", "{here}/o.json", "--rank", "4"], "--rank: is for merged traces, and {clean} holds only one rank."),
        (["merge", "{clean}", "-o", "{here}/o.json"], "{clean}: merge needs the traces of at least two ranks; name them all."),
        (["merge", "{clean}", "-o", "{here}/o.json", "--ranks", "a"], "--ranks a: not a list of ranks; write 0,1,...: one a trace."),
        (["merge", "{clean}", "-o", "{here}/o.json", "--only", "4"], "--only 4: there is no trace of this rank; there are 3."),
        (["merge", "{here}/run", "-o", "{here}/o.json"], "{here}/run: holds 2 windows (iter-0000003, iter-0000005); name one of these folders."),
        (["slim", "{clean}", "-o", ""], "--output: is empty; name the file to write."),
        (["info", "{here}/log.txt"], "{here}/log.txt: no trace: neither a JSON object nor an array of events."),
        (["decompress", "{here}/log.txt"], "{here}/log.txt: no trace: neither a JSON object nor an array of events."),
        (["decompress", "{here}/nothing.gz"], "{here}/nothing.gz: no trace: the file is empty."),
        (["slim", "{here}/empty", "-o", "{here}/o.json"], "{here}/empty: is a folder, and slim takes one trace; name a file in the folder."),
        (["convert", "{clean}", "-o", "{here}/o.json.gz"], f"--output {{here}}/o.json.gz: {TIMELINE}."),
        (["convert", "{clean}", "-o", "{here}/o.pdf"], f"--output {{here}}/o.pdf: {TIMELINE}."),
        (["report", "{clean}", "-o", "{here}/r.pdf"], f"--output {{here}}/r.pdf: {REPORT}."),
        (["report", "{clean}", "-o", "{here}/r.JSON.gz"], f"--output {{here}}/r.JSON.gz: {REPORT}."),
        (["compare", "{clean}", "{clean}", "-o", "{here}/c.md"], "--output {here}/c.md: this command writes an HTML page; name the file .html."),
        (["memory", "{clean}", "-o", "{here}/m.pdf"], "--output {here}/m.pdf: this command writes an HTML page; name the file .html."),
        (["slim", "{clean}", "-o", "{here}/o.html"], f"--output {{here}}/o.html: {TRACE}."),
        (["merge", "{clean}", "-o", "{here}/o.pftrace.gz"], f"--output {{here}}/o.pftrace.gz: {TRACE}."),
        (["decompress", "{clean}", "-o", "{here}/o.zip"], f"--output {{here}}/o.zip: {TRACE}."),
        (["operators", "{here}/no.json"], "{here}/no.json: no such file or folder."),
        (["operators", "{here}/empty"], "{here}/empty: is a folder, and operators takes one trace; name a file in the folder."),
        (["stacks", "{here}/no.json"], "{here}/no.json: no such file or folder."),
        (["stacks", "{here}/empty"], "{here}/empty: is a folder, and stacks takes one trace; name a file in the folder."),
        (["status", "{here}/no"], "{here}/no: no such folder; name the folder of a run."),
        (["trigger", "{here}/log.txt"], "{here}/log.txt: is a file; name the folder of a run."),
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


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("info --colour x", "--colour: info has no such option; see torch-trace info --help."),
        ("analyze x --stepp 3", "--stepp: analyze has no such option; did you mean --step?"),
        ("analyze", "analyze: PATH is missing; see torch-trace analyze --help."),
        ("sql", "sql: PATH is missing; see torch-trace sql --help."),
        ("sql x", "sql: QUERY is missing; see torch-trace sql --help."),
        ("sql x y --format xml", "--format xml: choose from table, csv, json."),
        ("slim x", "slim: --output is missing; see torch-trace slim --help."),
        ("analyze x --top", "--top: needs a value."),
        ("analyze x --top 0", "--top 0: must be a whole number, 1 or more."),
        ("analyze x -j two", "--jobs two: must be a whole number, 1 or more."),
        ("analyze x --step last", "--step last: must be a whole number."),
        ("view x --port 99999", "--port 99999: must be a whole number from 1 to 65535."),
        ("convert x -o y.pftrace --args few", "--args few: choose from some, all, none."),
        ("compare a b c", "compare: got unexpected extra argument (c); see torch-trace compare --help."),
    ],
)  # fmt: skip
def test_a_line_that_cannot_be_parsed_is_status_2_and_one_sentence(
    line: str, sentence: str
) -> None:
    result = run(*line.split())
    assert (result.returncode, result.stderr.decode()) == (2, f"torch-trace: {sentence}\n")


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


def test_only_a_process_that_ends_with_its_command_leaves_freeing_to_the_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Analysis:
        """Something that can be seen to go."""

    going_on, ending = Analysis(), Analysis()
    left = [weakref.ref(going_on), weakref.ref(ending)]
    interruption.spare(going_on)
    monkeypatch.setattr(interruption, "_kept", [])
    interruption.spare(ending)
    del going_on, ending
    assert [one() is None for one in left] == [True, False]
