# SPDX-License-Identifier: Apache-2.0
"""`torch-trace check`: what is a fault, how it is said, and the exit status."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from command_line import MAIN, last_line, run
from small_traces import BROKEN
from trace_builder import HEADER, event, kernel, launch, text, write


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


def test_the_status_of_a_process_is_that_of_the_error(broken: Path) -> None:
    done = subprocess.run([*MAIN, "check", broken, "--strict"], capture_output=True)
    assert done.returncode == 4
    assert last_line(done.stderr) == f"torch-trace: 1 of 1 trace has faults: {broken}."


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
def test_impossible_times_are_a_fault_with_their_offset(
    tmp_path: Path, odd: str, kind: str
) -> None:
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
