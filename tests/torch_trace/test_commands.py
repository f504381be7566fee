# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  (a sentence that users read stands on one line)
"""The commands as a user meets them: exit status, standard output and error, files left behind."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from trace_builder import HEADER, event, kernel, launch, strict, text, write

from megatron.torch_trace.commands import run as run_command

ROOT = Path(__file__).parents[2]
CLEAN = text(launch(1_000, 2_000, 1), kernel("k", 2_000, 3_000, 1))
BROKEN = text(event(r"C:\Users"), event("x"))


MAIN = [sys.executable, "-c", "from megatron.torch_trace.commands import main; main()"]


@dataclass
class Ended:
    """What a user sees of a command that has ended."""

    returncode: int
    stdout: bytes
    stderr: bytes


def run(*args: object, stdin: bytes = b"") -> Ended:
    """`torch-trace ARGS` in this process, which is ten times as fast as in one of its own."""
    streams = [io.TextIOWrapper(io.BytesIO(data), encoding="utf-8") for data in (stdin, b"", b"")]
    handler = signal.getsignal(signal.SIGTERM)
    status = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["torch-trace", *map(str, args)])
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            patch.setattr(sys, name, stream)
        try:
            status = run_command()
        except SystemExit as end:
            status = int(end.code or 0)
        finally:
            signal.signal(signal.SIGTERM, handler)
    written = []
    for stream in streams[1:]:
        stream.flush()
        assert isinstance(stream.buffer, io.BytesIO)
        written.append(stream.buffer.getvalue())
    return Ended(status, *written)


def last_line(data: bytes) -> str:
    return data.decode().strip().splitlines()[-1]


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    return write(tmp_path / "rank-0.json.gz", CLEAN)


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    return write(tmp_path / "rank-1.json.gz", BROKEN)


@pytest.mark.parametrize("command", ["info", "check", "decompress", "slim", "merge"])
def test_help_says_what_a_command_does(command: str) -> None:
    shown = run(command, "--help")
    assert shown.returncode == 0
    assert shown.stdout.startswith(f"Usage: torch-trace {command}".encode())


def test_all_is_well_is_status_0(clean: Path) -> None:
    result = run("check", clean)
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout.startswith(b"ok  ")


def test_damage_is_status_3_and_tells_kind_count_and_byte(broken: Path) -> None:
    result = run("check", broken)
    assert result.returncode == 3
    assert "1  " in result.stdout.decode()
    assert f"{BROKEN.index(b'{', len(HEADER) - 2):,}" in result.stdout.decode()
    assert "stray backslashes, doubled" in result.stdout.decode()
    assert last_line(result.stderr) == f"torch-trace: 1 of 1 trace has faults: {broken}."


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


def test_decompress_writes_the_same_bytes_beside_the_file(clean: Path) -> None:
    result = run("decompress", clean)
    assert result.returncode == 0
    assert clean.with_suffix("").read_bytes() == CLEAN
    assert run("decompress", clean).returncode == 2
    assert run("decompress", clean, "--force").returncode == 0


def test_decompress_of_a_folder_leaves_alone_what_is_plain_already(clean: Path) -> None:
    assert run("decompress", clean.parent).returncode == 0
    names = ["rank-0.json", "rank-0.json.gz"]
    assert run("decompress", clean.parent, "--force").returncode == 0
    assert sorted(path.name for path in clean.parent.iterdir()) == names
    clean.unlink()
    result = run("decompress", clean.parent)
    assert result.returncode == 2
    assert b"every trace there is plain JSON already." in result.stderr


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


def test_slim_says_which_categories_there_are_where_one_is_misspelt(clean: Path) -> None:
    out = clean.with_name("out.json")
    for words, wrong in (
        ("kernels", "kernels"),
        ("kernels,cuda_runtime", "kernels"),
        ("cpu_op,gpu_memset", "cpu_op,gpu_memset"),
    ):
        result = run("slim", clean, "-o", out, "--category", words)
        expected = f"--category {wrong}: not in {clean}, which has cuda_runtime, kernel.\n"
        assert result.stderr.decode() == f"torch-trace: {expected}"
        assert result.returncode == 2
        assert not out.exists()


def test_slim_says_once_which_known_category_a_trace_lacks(clean: Path) -> None:
    out = clean.with_name("out.json")
    result = run("slim", clean, "-o", out, "--category", "kernel,gpu_memset")
    assert result.stderr.decode() == f"--category gpu_memset: no such event in {clean}.\n"
    assert result.returncode == 0
    assert run("slim", clean, "-o", out, "--force", "--category", "kernel").stderr == b""


def test_a_preset_is_not_asked_for_the_categories_of_other_makers(clean: Path) -> None:
    out = clean.with_name("out.json")
    assert run("slim", clean, "-o", out, "--preset", "overlap").stderr == b""


def test_decompress_leaves_damage_in_the_text_and_says_what_mends_it(broken: Path) -> None:
    result = run("decompress", broken)
    assert result.returncode == 0
    assert broken.with_suffix("").read_bytes() == BROKEN
    assert b"byte for byte (--repair mends what parsers refuse)." in result.stderr


def test_decompress_saves_what_a_cut_file_holds(tmp_path: Path) -> None:
    many = text(*[event(f"op{i}", i * 1000) for i in range(5000)])
    path = tmp_path / "rank-0.json.gz"
    path.write_bytes(gzip.compress(many)[:-2000])
    result = run("decompress", path)
    assert result.returncode == 3
    assert "the compressed stream ends early" in result.stderr.decode()
    found = strict((tmp_path / "rank-0.json").read_bytes())["traceEvents"]
    assert 100 < len(found) < 5000
    assert [e["name"] for e in found] == [f"op{i}" for i in range(len(found))]


def test_the_script_in_tools_is_the_same_command(clean: Path) -> None:
    script = ROOT / "tools" / "decompress_trace.py"
    done = subprocess.run([sys.executable, script, clean], capture_output=True, check=False)
    assert done.returncode == 0
    assert clean.with_suffix("").read_bytes() == CLEAN


def test_standard_input_and_output_stand_for_files(clean: Path) -> None:
    def through(*args: str) -> bytes:
        done = subprocess.run([*MAIN, *args], input=clean.read_bytes(), capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout

    assert through("decompress", "-", "-o", "-") == CLEAN
    assert strict(through("slim", "-", "-o", "-"))["traceEvents"]


def test_the_status_of_a_process_is_that_of_the_error(broken: Path) -> None:
    done = subprocess.run([*MAIN, "check", broken, "--strict"], capture_output=True)
    assert done.returncode == 4
    assert last_line(done.stderr) == f"torch-trace: 1 of 1 trace has faults: {broken}."


@pytest.mark.parametrize(
    "arguments", [["--help"], ["info"], ["check", "--json"], ["decompress", "-o", "-"]]
)
def test_output_that_goes_to_a_full_disk_is_one_sentence(clean: Path, arguments: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([*MAIN, *arguments, clean], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr.startswith(b"torch-trace: standard output: the disk is full")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["table", "json"])
def test_output_that_nobody_reads_any_more_is_not_worth_a_word(
    clean: Path, more: list[str]
) -> None:
    read, write_end = os.pipe()
    os.close(read)
    done = subprocess.run([*MAIN, "check", clean, *more], stdout=write_end, stderr=subprocess.PIPE)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, b"")


def test_json_is_for_machines(clean: Path, broken: Path) -> None:
    (clean.parent / "notes.txt").write_text("hello")
    facts = json.loads(run("info", clean.parent, "--json").stdout)
    assert [t["rank"] for t in facts["traces"]] == [3, 3]
    assert [t["launches"]["launches"] for t in facts["traces"]] == [1, 0]
    assert [s["file"] for s in facts["skipped_files"]] == [str(clean.parent / "notes.txt")]
    verdict = json.loads(run("check", clean, broken, "--json").stdout)
    assert [t["ok"] for t in verdict["traces"]] == [True, False]
    assert verdict["traces"][1]["damage"]["stray_backslash"]["count"] == 1


@pytest.mark.parametrize(
    ("events", "sentence"),
    [
        (
            [launch(i * 1000, 1000 + i * 1000, i + 1) for i in range(5)],
            "5 of 5 launches have no kernel",
        ),
        (
            [launch(i * 1000, 1000 + i * 1000, i + 1) for i in range(5)]
            + [kernel("k", 500 + i * 1000, 1500 + i * 1000, i + 1) for i in range(2)],
            "3 of 5 launches have no kernel",
        ),
    ],
)
def test_missing_kernels_are_a_fault(tmp_path: Path, events: list[str], sentence: str) -> None:
    path = write(tmp_path / "rank-0.json", text(*events))
    assert run("check", path).returncode == 3
    assert sentence in " ".join(run("info", path).stdout.decode().split())


@pytest.mark.parametrize(
    ("odd", "kind"),
    [
        (event("x", "0", 1_000), "far away from the rest of the trace"),
        (event("x", "1723203468000.000", "-1"), "with a negative duration"),
        (event("x", "1723203468000.000", "9e15"), "longer than the trace can be"),
        (event("x", "1723203468000.000", None), "without a duration"),
        ('{"ph": "X", "name": "x", "dur": 1, "pid": 1, "tid": 1}', "without a start"),
    ],
)
def test_impossible_times_are_a_fault_with_their_place(tmp_path: Path, odd: str, kind: str) -> None:
    sane = [event("y", f"1723203468{i:03d}.000") for i in range(20)]
    data = text(*sane, odd)
    path = write(tmp_path / "rank-0.json", data)
    found = json.loads(run("check", path, "--json").stdout)["traces"][0]["odd_times"]
    assert found == {kind: {"count": 1, "offset": data.index(odd.encode())}}


def test_a_kernel_that_overruns_the_next_by_seconds_is_a_fault(tmp_path: Path) -> None:
    overrun = kernel("A", 0, 5_000_000_000, 1)
    fine = [kernel("B", 10_000, 15_000, 2), kernel("C", 14_000, 19_000, 3)]
    launches = [launch(0, 1_000, number) for number in (1, 2, 3)]
    data = text(*launches, *fine, overrun)
    path = write(tmp_path / "rank-0.json", data)
    result = run("check", path, "--json")
    assert result.returncode == 3
    assert json.loads(result.stdout)["traces"][0]["odd_times"] == {
        "on a GPU overrunning the next one of their stream by more than a second": {
            "count": 1,
            "offset": data.index(overrun.encode()),
        }
    }


def test_the_plain_text_beside_a_trace_is_no_second_trace(clean: Path) -> None:
    assert run("decompress", clean).returncode == 0
    result = run("check", clean.parent)
    assert result.returncode == 0
    lines = result.stdout.decode().splitlines()
    assert [line.split()[:2] for line in lines if line.startswith("ok")] == [["ok", str(clean)]]
    plain = clean.with_suffix("")
    assert (
        lines[-1]
        == f"Skipped {plain}: unpacked text of rank-0.json.gz, which is in the same folder."
    )


def test_brackets_in_paths_and_traces_are_no_markup(tmp_path: Path) -> None:
    folder = tmp_path / "run[bold]"
    folder.mkdir()
    (folder / "[red]notes.txt").write_text("hello")
    header = HEADER.replace("NVIDIA H200", "GPU [/] 1").replace(
        '"world_size"', '"[/red]": 1, "world_size"'
    )
    data = text(event("x", cat="[/x]"), kernel("k", 2_000, 3_000, 1), header=header)
    path = write(folder / "rank-0.json", data)
    shown = run("info", path).stdout.decode()
    assert str(path) in shown
    assert "[/x]" in shown
    assert "GPU [/] 1" in shown
    for command in ("info", "check"):
        result = run(command, folder)
        assert f"Skipped {folder}/[red]notes.txt: " in result.stdout.decode(), result.stderr
    small = folder / "[green].json"
    assert f"Wrote {small}: " in run("slim", path, "-o", small).stdout.decode().replace("\n", " ")


def test_strangers_in_a_folder_are_skipped_with_a_reason(clean: Path) -> None:
    folder = clean.parent
    write(folder / "README.gz", b"read me")
    (folder / "list.json").write_text("[1, 2]")
    (folder / "rank-1.json.gz.77.tmp").write_bytes(b"half")
    (folder / "artifacts").mkdir()
    (folder / "artifacts" / "rank-0.stacks.txt").write_text("a;b 1")
    result = run("info", folder)
    assert result.returncode == 0
    skipped = [line for line in result.stdout.decode().splitlines() if line.startswith("Skipped")]
    assert [line.split("/")[-1].split(":")[0] for line in skipped] == [
        "README.gz", "list.json", "rank-1.json.gz.77.tmp",
    ]  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_being_stopped_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    pipe = tmp_path / "in.fifo"
    os.mkfifo(pipe)
    out = tmp_path / "out" / "out.json"
    out.parent.mkdir()
    process = subprocess.Popen(
        [*MAIN, "decompress", "-", "-o", out],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(CLEAN * 2000)
    process.stdin.flush()
    deadline = time.monotonic() + 30
    while not list(out.parent.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [p.suffix for p in out.parent.iterdir()] == [".tmp"]
    process.send_signal(number)
    process.communicate()
    assert process.returncode in (130, 128 + number)
    assert list(out.parent.iterdir()) == []
