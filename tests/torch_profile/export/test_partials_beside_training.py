# SPDX-License-Identifier: Apache-2.0
"""A finished trace is analysed beside training, and nothing of that reaches training."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from exports import profiled
from gates import MINUTES, until

from megatron.torch_profile.export import follow_ups
from megatron.torch_profile.export.background import Exporter
from megatron.torch_profile.export.compression import Written
from megatron.torch_profile.export.endings import Ending
from megatron.torch_profile.export.follow_ups import FollowUps
from megatron.torch_profile.export.trace_export import Export
from megatron.torch_profile.plan.schedule import Window
from megatron.torch_trace.analysis.run.analyse import analyze
from megatron.torch_trace.format.file_names import TraceName, kept_analysis_of
from megatron.torch_trace.system.memory import HostMemory

KERNELS = Written("", 10_000, 1_000, 100, kernels=7, launches=7)


class Started:
    """Stands for the program; answers when told to."""

    def __init__(self, command: list[str]) -> None:
        self.command = command
        self.answer: dict[str, Any] | None = None
        self.killed = False

    def poll(self) -> dict[str, Any] | None:
        return self.answer

    def kill(self) -> None:
        self.killed = True


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Started]:
    """The programs that are started instead of real ones."""
    found: list[Started] = []

    def start(command: list[str]) -> Started:
        found.append(Started(command))
        return found[-1]

    monkeypatch.setattr(follow_ups, "Program", start)
    return found


@pytest.fixture
def kept() -> Iterator[FollowUps]:
    made = FollowUps(exit_timeout=0.0)
    yield made
    made.wait()


def export_to(folder: Path, first: int = 3, **options: Any) -> Export:
    window = Window(first, first, 1)
    where = folder / f"iter-{first:07d}"
    return Export(0, window, (first,), where, TraceName(0, 1, "gzip"), **options)


def test_a_finished_trace_is_analysed_and_the_partial_stands_in_for_it(
    tmp_path: Path, said: list[str]
) -> None:
    exporter = Exporter(MINUTES)
    export = export_to(tmp_path, partials="always")
    exporter.hand_over(
        profiled(), export, Ending.FORK, stop_seconds=0.0, expected_mb=0.0, writers=1
    )
    exporter.wait()
    exporter._follow_ups.wait()
    assert kept_analysis_of(export.target).is_file()
    direct = analyze(export.target, use_partials=False)
    export.target.unlink()
    assert analyze(export.target) == direct
    assert said[-1] == "rank 0 waits up to 300 s for the analysis of its trace of iteration 3"


@pytest.mark.parametrize(
    ("asked", "kernels", "urgent", "begun"),
    [
        ("auto", 7, False, True),
        ("auto", 0, False, False),
        ("always", 0, False, True),
        ("never", 7, False, False),
        # The process may be killed any moment: what is left of its time belongs to traces.
        ("always", 7, True, False),
    ],
)
def test_what_is_analysed(
    tmp_path: Path,
    kept: FollowUps,
    started: list[Started],
    asked: str,
    kernels: int,
    urgent: bool,
    begun: bool,
) -> None:
    export = export_to(tmp_path, partials=asked, urgent=urgent)
    kept.begin(export, replace(KERNELS, kernels=kernels))
    assert [s.command[-1] for s in started] == ([str(export.target)] if begun else [])


def test_one_at_a_time(tmp_path: Path, kept: FollowUps, started: list[Started]) -> None:
    for first in (3, 7):
        kept.begin(export_to(tmp_path, first, partials="auto"), KERNELS)
    assert len(started) == 1
    started[0].answer = {}
    kept.poll()
    assert [Path(s.command[-1]).parent.name for s in started] == ["iter-0000003", "iter-0000007"]


@pytest.mark.parametrize("answer", [{"error": "disk full"}, {"died": "disk full"}])
def test_a_failure_is_said_once_and_nothing_is_tried_again(
    tmp_path: Path,
    kept: FollowUps,
    started: list[Started],
    said: list[str],
    answer: dict[str, str],
) -> None:
    kept.begin(export_to(tmp_path, partials="auto"), KERNELS)
    started[0].answer = answer
    for first in (7, 9):
        kept.begin(export_to(tmp_path, first, partials="auto"), KERNELS)
    assert len(started) == 1
    assert said == [
        "rank 0 keeps no analyses beside its traces from iteration 3 on: disk full; torch-trace "
        "analyze reads the traces instead"
    ]


def test_without_memory_for_it_there_is_none(
    tmp_path: Path,
    kept: FollowUps,
    started: list[Started],
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follow_ups, "host_memory", lambda: HostMemory(10**9, 9 * 10**8))
    kept.begin(export_to(tmp_path, partials="auto"), KERNELS)
    assert started == []
    assert "too little free memory" in said[0]


def test_it_is_ended_when_it_takes_too_long_and_when_training_has_waited_enough(
    tmp_path: Path, started: list[Started], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient = FollowUps(exit_timeout=0.0)
    impatient.begin(export_to(tmp_path, partials="auto"), KERNELS)
    impatient.wait()
    assert started[0].killed
    monkeypatch.setattr(follow_ups, "_MOST_SECONDS", 0.0)
    slow = FollowUps(exit_timeout=MINUTES)
    slow.begin(export_to(tmp_path, partials="auto"), KERNELS)
    slow.poll()
    slow.wait()
    assert started[1].killed
    assert "the analysis was not done after 0 s" in said[-1]


def test_it_ends_with_training_however_that_ends(tmp_path: Path) -> None:
    # What it would analyse never ends, as no file does whose writer holds it open.
    stuck = (
        "import time; from megatron.torch_profile.export import kept_analysis\n"
        "from megatron.torch_trace.analysis.run import kept_analyses\n"
        "kept_analyses.keep = lambda *a, **k: (print('begun', flush=True), time.sleep(900))\n"
        "kept_analysis.main(['x'])\n"
    )
    parent = (
        "import subprocess, sys; "
        f"child = subprocess.Popen([sys.executable, '-c', {stuck!r}], stdout=subprocess.PIPE); "
        "child.stdout.readline(); print(child.pid, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as training:
        assert training.stdout is not None
        pid = int(training.stdout.readline())
        assert _runs(pid)
        training.kill()
    assert until(lambda: not _runs(pid))


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_neither_numpy_nor_polars_comes_into_training() -> None:
    program = (
        "import sys; import megatron.torch_profile.export.background; "
        "assert not {'numpy', 'polars', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=MINUTES)
