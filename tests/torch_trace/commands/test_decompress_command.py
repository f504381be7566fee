# SPDX-License-Identifier: Apache-2.0
"""`torch-trace decompress`: the same bytes, all that a cut file holds, nothing half-written."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import MAIN, run
from small_traces import BROKEN, CLEAN
from trace_builder import event, strict, text

ROOT = Path(__file__).parents[3]


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


def test_a_text_without_a_trace_is_handed_out_and_not_called_mended(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.json"
    path.write_bytes(b"[\x8b\xae" + bytes(300))
    out = tmp_path / "out.json"
    result = run("decompress", path, "--repair", "-o", out)
    assert result.returncode == 3
    assert out.read_bytes() == path.read_bytes()
    said = result.stderr.decode()
    assert "303 B, byte for byte (there is no trace in it, and nothing to mend)." in said
    assert "bytes that are not UTF-8, kept as they are (first at byte 0)" in said


def test_the_script_in_tools_is_the_same_command(clean: Path) -> None:
    script = ROOT / "tools" / "decompress_trace.py"
    done = subprocess.run([sys.executable, script, clean], capture_output=True, check=False)
    assert done.returncode == 0
    assert clean.with_suffix("").read_bytes() == CLEAN


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
    deadline = time.monotonic() + 300
    while not list(out.parent.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [p.suffix for p in out.parent.iterdir()] == [".tmp"]
    process.send_signal(number)
    process.communicate()
    assert process.returncode in (130, 128 + number)
    assert list(out.parent.iterdir()) == []
