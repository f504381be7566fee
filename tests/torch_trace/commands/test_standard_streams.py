# SPDX-License-Identifier: Apache-2.0
"""Standard streams of commands: a trace in a pipe, a full disk, a reader that has gone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from command_line import MAIN
from small_traces import CLEAN
from trace_builder import strict


def test_standard_input_and_output_stand_for_files(clean: Path) -> None:
    def through(*args: str) -> bytes:
        done = subprocess.run([*MAIN, *args], input=clean.read_bytes(), capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout

    assert through("decompress", "-", "-o", "-") == CLEAN
    assert strict(through("slim", "-", "-o", "-"))["traceEvents"]


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
