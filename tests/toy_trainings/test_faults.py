# SPDX-License-Identifier: Apache-2.0
"""Faults that kill jobs: the table of docs/faults.md, row by row, on processes that really die."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
from pathlib import Path

import pytest
from toy_runs import (
    ENVIRONMENT,
    SECONDS,
    TOY,
    ended,
    exists,
    losses,
    python,
    start,
    steps,
    until,
    writes,
)
from written_files import files_below


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Losses of the toy when nothing happens."""
    status, output = ended(start(tmp_path_factory.mktemp("plain")))
    assert status == 0, output
    return losses(output)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_in_the_middle_of_a_window_leaves_a_partial_trace(
    number: signal.Signals, tmp_path: Path
) -> None:
    process = start(tmp_path, "--active", "5", "--stays-after", "4")
    until(process, "step 4 ")
    process.send_signal(number)
    process.send_signal(number)  # some sites send it twice
    status, output = ended(process)
    assert status == -number, "it died of the signal, as it would have without us"
    assert f"rank 0 received {number.name}: saving what is recorded, then ending" in output
    assert files_below(tmp_path) == ["iter-0000003-0000007/rank-0.partial.pt.trace.json.gz"]
    assert steps(tmp_path) == ["ProfilerStep#3", "ProfilerStep#4"]


def test_a_signal_that_somebody_handles_is_passed_on_and_training_ends_its_own_way(
    tmp_path: Path,
) -> None:
    process = start(tmp_path, "--own-handler", "--active", "5", "--stays-after", "4")
    until(process, "step 4 ")
    process.send_signal(signal.SIGTERM)
    status, output = ended(process)
    assert status == 0, output
    assert "own handler called" in output
    assert "end of training" in output
    assert files_below(tmp_path) == ["iter-0000003-0000007/rank-0.partial.pt.trace.json.gz"]


def test_a_signal_while_the_child_still_writes_waits_for_it(tmp_path: Path) -> None:
    folder, gate = tmp_path / "traces", tmp_path / "gate"
    process = start(folder, "--saves-when", str(gate), "--stays-after", "5")
    until(process, "writes the trace of iteration 3")
    process.send_signal(signal.SIGTERM)
    until(process, "received SIGTERM")
    writes(gate, "iter-0000003")
    status, _ = ended(process)
    assert status == -signal.SIGTERM
    assert files_below(folder) == ["iter-0000003/rank-0.pt.trace.json.gz"]


def test_a_signal_while_the_end_of_the_process_waits_for_a_trace_waits_too(tmp_path: Path) -> None:
    folder, gate = tmp_path / "traces", tmp_path / "gate"
    process = start(folder, "--saves-when", str(gate), "--iterations", "3")
    until(process, "for 1 trace to be written")
    process.send_signal(signal.SIGTERM)
    writes(gate, "iter-0000003")
    status = process.wait(timeout=SECONDS)
    left = files_below(folder)  # what SLURM would leave: it kills what outlives its parent
    ended(process)
    assert (status, left) == (-signal.SIGTERM, ["iter-0000003/rank-0.pt.trace.json.gz"])


WORKERS = (
    "from torch.utils.data import DataLoader; "
    "batches = iter(DataLoader(torch.zeros(10_000, 1), num_workers=2)); next(batches)"
)
"""With a data loader's workers, torch handles SIGCHLD and raises where the main thread stands."""


@pytest.mark.parametrize(
    ("iterations", "stands"),
    [("8", "writes the trace of iteration 3"), ("3", "for 1 trace")],
    ids=["in training", "at its end"],
)
def test_a_signal_to_a_whole_job_waits_for_the_trace_though_the_workers_of_its_data_die_at_once(
    iterations: str, stands: str, tmp_path: Path
) -> None:
    folder, gate = tmp_path / "traces", tmp_path / "gate"
    options = ["--saves-when", str(gate), "--iterations", iterations, "--stays-after", "5"]
    process = start(folder, *options, "--at", "1", WORKERS)
    until(process, stands)
    os.killpg(process.pid, signal.SIGTERM)  # as torchrun ends its ranks
    writes(gate, "iter-0000003")
    status = process.wait(timeout=SECONDS)
    left = files_below(folder)
    _, output = ended(process)
    assert (status, left) == (-signal.SIGTERM, ["iter-0000003/rank-0.pt.trace.json.gz"])
    assert "profiling-stopped" not in output


def test_a_signal_between_windows_changes_nothing_but_a_line(tmp_path: Path) -> None:
    process = start(tmp_path, "--seconds-per-step", "0.3", "--iterations", "3000")
    until(process, "rank 0 wrote")
    process.send_signal(signal.SIGTERM)
    status, _ = ended(process)
    assert status == -signal.SIGTERM


def test_an_exception_leaves_the_window_it_ended(tmp_path: Path) -> None:
    status, output = ended(start(tmp_path, "--active", "3", "--raise-at", "4"))
    assert status == 1
    assert output.count("RuntimeError: the model exploded") == 1, "and its own traceback only"
    assert files_below(tmp_path) == ["iter-0000003-0000005/rank-0.partial.pt.trace.json.gz"]


def test_peers_do_not_wait_for_an_export_longer_than_their_timeout(
    tmp_path: Path, plain: list[str]
) -> None:
    torchrun = [python(), "-m", "torch.distributed.run", "--standalone"]
    folder, gate = tmp_path / "traces", tmp_path / "gate"
    # The trace is not written before both ranks have trained to the end: if the peer had to wait
    # for it, its collectives would reach their timeout.
    options = ["--saves-when", str(gate), "--group-timeout", "90", "--iterations", "8"]
    run = subprocess.Popen(
        [*torchrun, "--nproc-per-node=2", TOY, str(folder), *options],
        env={**ENVIRONMENT, "PYTHON_EXEC": python()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with run:
        assert run.stdout
        seen = until(run, "step 8 ")
        seen += until(run, "step 8 ")
        writes(gate, "iter-0000003")
        seen += run.stdout.read()
    assert run.returncode == 0, seen
    assert seen.count("end of training") == 2
    assert files_below(folder) == ["iter-0000003/rank-0.pt.trace.json.gz"]


def test_windows_back_to_back_while_the_first_is_still_being_written(
    tmp_path: Path, plain: list[str]
) -> None:
    status, output = ended(start(tmp_path, "--repeat", "3", "--slow-save", "2"))
    assert status == 0, output
    assert losses(output) == plain
    assert files_below(tmp_path) == [f"iter-000000{n}/rank-0.pt.trace.json.gz" for n in (3, 5, 7)]


def test_a_window_that_outgrows_its_bound_ends_early(tmp_path: Path, plain: list[str]) -> None:
    # The first window, of 1.5 MB, tells how large an iteration is; the second is cut by it.
    written = "while recorder.exporter.last is None: recorder.exporter.poll(); time.sleep(0.01)"
    options = ("--active", "15", "--repeat", "2", "--max-trace-mb", "1", "--iterations", "40")
    status, output = ended(start(tmp_path, *options, "--at", "19", written))
    assert status == 0, output
    assert losses(output)[:8] == plain
    assert "take it past --torch-profile-max-trace-mb 1" in output
    (cut,) = tmp_path.glob("iter-0000019-0000033/rank-0.partial.pt.trace.json.gz")
    assert 0.5e6 < len(gzip.decompress(cut.read_bytes())) < 1.1e6


def test_after_every_fault_at_once_the_losses_are_the_same(
    tmp_path: Path, plain: list[str]
) -> None:
    folder, gate = tmp_path / "traces", tmp_path / "gate"
    folder.mkdir()
    # Where a child writes.
    options = ["--repeat", "3", "--flags", '{"profile_memory": true}']
    process = start(folder, *options, "--saves-when", str(gate))
    head = until(process, "writes the trace of iteration 3")
    # The child that writes the first trace is killed; the folder of the second disappears.
    children = subprocess.run(
        ["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False
    ).stdout.split()
    for child in children:
        os.kill(int(child), signal.SIGKILL)
    writes(gate, "iter-0000003", "iter-0000007")
    head += until(process, "writes the trace of iteration 5")
    (folder / "iter-0000005").rename(tmp_path / "elsewhere")
    writes(gate, "iter-0000005")
    status, tail = ended(process)
    assert status == 0, head + tail
    assert losses(head + tail) == plain
    assert "the process that wrote it was killed by SIGKILL" in head + tail
    assert "could not write the trace of iteration 5" in head + tail
    assert "iter-0000003/rank-0.pt.trace.json.gz" in files_below(folder)
    assert "iter-0000007/rank-0.pt.trace.json.gz" in files_below(folder)


def test_training_that_is_killed_while_a_thread_saves_leaves_what_can_be_completed(
    tmp_path: Path,
) -> None:
    folder, gate = tmp_path / "traces", tmp_path / "gate"
    process = start(folder, "--saves-when", str(gate), "--stays-after", "5")
    until(process, "step 5 ")
    process.send_signal(signal.SIGKILL)
    ended(process)
    assert files_below(folder) == [], "nothing has the name of a finished trace"


def test_a_folder_that_vanishes_while_a_thread_stops_the_profiler_costs_its_trace_only(
    tmp_path: Path, plain: list[str]
) -> None:
    folder, gate = tmp_path / "traces", tmp_path / "gate"
    folder.mkdir()
    process = start(folder, "--repeat", "2", "--saves-when", str(gate))
    head = until(process, "writes the trace of iteration 3")
    exists(folder / "iter-0000003")
    (folder / "iter-0000003").rename(tmp_path / "elsewhere")
    writes(gate, "iter-0000003", "iter-0000005")
    status, tail = ended(process)
    assert status == 0, head + tail
    assert losses(head + tail) == plain
    assert "could not write the trace of iteration 3" in head + tail
    assert files_below(folder) == ["iter-0000005/rank-0.pt.trace.json.gz"]
