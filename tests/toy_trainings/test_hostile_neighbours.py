# SPDX-License-Identifier: Apache-2.0
"""What else runs in and beside training while a window is open or its trace is written.

Whatever it is: the losses to the last digit and the status of a run without us, no traceback, no
file under its final name that is not whole, and nothing that goes on living.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from toy_runs import SECONDS, ended, losses, start, until, writes
from trace_builder import read
from warm_child import Child
from written_files import files_below

WINDOW = "iter-0000003-0000005"
WHOLE = f"{WINDOW}/rank-0.pt.trace.json.gz"
CHILDREN = """
import os, signal
from pathlib import Path
def children():
    tasks = Path("/proc/self/task").glob("*/children")
    return [int(pid) for task in tasks for pid in task.read_text().split()]
"""


def outlives(training: Child, mark: str) -> list[str]:
    """Command lines of living processes of a training's session, or with a mark, such as a folder.

    A fork of the training has no mark; a program that has a session of its own does.
    """
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            session = (process / "stat").read_text().rpartition(")")[2].split()[3]
            line = (process / "cmdline").read_text(errors="replace").replace("\0", " ")
            # Who is dead, and not waited for, has no line.
            if line and (mark in line or int(session) == training.pid):
                found.append(line)
    return found


def survives(folder: Path, plain: list[str], *options: str) -> tuple[str, list[str]]:
    """Run the toy through something and see that training is what it was.

    Returns:
        What was printed, and the traces under their final names, each of which is whole.
    """
    training = start(folder, *options)
    status, output = ended(training)
    assert status == 0, output
    assert "Traceback" not in output, output
    assert losses(output) == plain, output
    assert outlives(training, str(folder)) == []
    whole = [name for name in files_below(folder) if name.endswith(".json.gz")]
    for name in whole:
        assert read(folder / name)["traceEvents"]
    return output, whole


WORKERS = """
import multiprocessing
globals().pop("__file__", None)  # so that no worker runs this script again
with multiprocessing.get_context("{method}").Pool(2) as pool:
    assert pool.map(abs, range(-20, 0)) == list(range(20, 0, -1))
"""


def test_worker_processes_of_the_users(tmp_path: Path, plain: list[str]) -> None:
    options = [
        word
        for iteration, method in ((2, "fork"), (3, "spawn"), (4, "fork"), (5, "forkserver"))
        for word in ("--at", str(iteration), WORKERS.format(method=method))
    ]
    _, whole = survives(tmp_path, plain, "--active", "3", *options)
    assert whole == [WHOLE]


def test_a_data_loader_with_workers_across_the_window(tmp_path: Path, plain: list[str]) -> None:
    begins = """
loader = torch.utils.data.DataLoader(list(range(40)), num_workers=2, batch_size=2)
batches = iter(loader)
"""
    step = "assert next(batches) is not None"
    each = [word for n in range(2, 8) for word in ("--at", str(n), step)]
    _, whole = survives(tmp_path, plain, "--active", "3", "--at", "2", begins, *each)
    assert whole == [WHOLE]


def test_hundreds_of_threads_that_compute(tmp_path: Path, plain: list[str]) -> None:
    begins = """
import threading
over = threading.Event()
def busy():
    while not over.wait(0.01):
        torch.zeros(8) + 1
threads = [threading.Thread(target=busy) for _ in range(300)]
for thread in threads: thread.start()
"""
    ends = "over.set()\nfor thread in threads: thread.join()"
    options = ["--at", "2", begins, "--at", "8", ends]
    _, whole = survives(tmp_path, plain, "--active", "3", *options)
    assert whole == [WHOLE]


@pytest.mark.parametrize(("iteration", "spare_mb"), [("1", 0), ("4", 64)])
def test_hardly_any_memory_left(
    tmp_path: Path, plain: list[str], iteration: str, spare_mb: int
) -> None:
    little = f"""
import resource
pages = int(open("/proc/self/statm").read().split()[0])
taken = pages * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + {spare_mb} * 2**20, resource.RLIM_INFINITY))
"""
    output, whole = survives(tmp_path, plain, "--active", "3", "--at", iteration, little)
    assert bool(whole) == (spare_mb > 0)
    assert ("rank 0 leaves out iterations 3-5: " in output) == (spare_mb == 0)


@pytest.mark.parametrize(
    ("number", "mode"),
    [
        ("SIGKILL", "background"),
        ("SIGSTOP", "background"),
        ("SIGTERM", "background"),
        ("SIGKILL", "sync"),
        ("SIGSTOP", "sync"),
    ],
)
def test_a_writer_that_is_sent_a_signal(
    tmp_path: Path, plain: list[str], number: str, mode: str
) -> None:
    # None may be done before: a child waits, and a program is stopped before it begins.
    sends = f"""{CHILDREN}
assert children()
for pid in children(): os.kill(pid, signal.{number})
options.saves_when.mkdir()
(options.saves_when / "{WINDOW}").touch()
"""
    stops = """
from megatron.torch_profile.export import writers
begin = writers.Program.__init__
def stopped(program, command):
    begin(program, ["sh", "-c", 'kill -STOP $$; exec "$0" "$@"', *command])
writers.Program.__init__ = stopped
"""
    # A child writes where memory is recorded; elsewhere a thread does.
    forks = mode == "background"
    seconds = 4 if number == "SIGSTOP" else 600
    flags = json.dumps({"export": mode, "exit_timeout": seconds, "profile_memory": forks})
    gate = ["--saves-when", str(tmp_path / "gate")] if forks else ["--at", "5", stops]
    sends = sends if forks else sends.partition("options.")[0]
    output, whole = survives(
        tmp_path / "traces", plain, "--active", "3", *gate, "--flags", flags, "--at", "6", sends
    )
    if number == "SIGTERM":
        assert whole == [WHOLE]
    elif number == "SIGSTOP":
        assert whole == []
        assert "gives up on the trace of iterations 3-5 after 4 s" in output
    elif mode == "background":
        assert whole == [WHOLE]
        assert "the process that wrote it was killed by SIGKILL" in output


@pytest.mark.parametrize(
    "happens",
    [
        'shutil.rmtree(folder / "iter-0000003-0000005")',
        'shutil.rmtree(folder); folder.write_text("a file")',
    ],
)
def test_what_happens_to_the_folder_while_a_trace_is_written(
    tmp_path: Path, plain: list[str], happens: str
) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    # A thread makes it when the profiler has stopped.
    made = 'while not (folder / "iter-0000003-0000005").exists(): time.sleep(0.01)'
    goes_on = 'options.saves_when.mkdir()\n(options.saves_when / "iter-0000003-0000005").touch()'
    code = f"import shutil\n{made}\n{happens}\n{goes_on}"
    options = ["--active", "3", "--saves-when", str(tmp_path / "gate"), "--at", "6", code]
    output, whole = survives(folder, plain, *options)
    assert whole or "rank 0 could not write the trace of iterations 3-5" in output


def test_two_jobs_in_one_folder_at_once(tmp_path: Path, plain: list[str]) -> None:
    folder, gate = tmp_path / "traces", tmp_path / "gate"
    jobs = [start(folder, "--active", "3", "--saves-when", str(gate)) for _ in range(2)]
    seen = [until(job, "writes the trace of iterations 3-5") for job in jobs]
    writes(gate, WINDOW)
    ends = [ended(job) for job in jobs]
    outputs = [(status, head + tail) for head, (status, tail) in zip(seen, ends, strict=True)]
    assert [status for status, _ in outputs] == [0, 0]
    assert [losses(output) for _, output in outputs] == [plain, plain]
    said = "".join(output for _, output in outputs)
    assert "Traceback" not in said
    assert said.count("rank 0 wrote ") == 1
    assert said.count("exists, and traces are never overwritten") == 1
    assert [name for name in files_below(folder) if name.endswith(".gz")] == [WHOLE]
    assert read(folder / WHOLE)["traceEvents"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_training_that_is_ended_while_its_trace_is_written_leaves_nothing_running(
    tmp_path: Path, number: signal.Signals
) -> None:
    gate = tmp_path / "gate"
    process = start(tmp_path / "traces", "--active", "3", "--saves-when", str(gate))
    until(process, "writes the trace of iterations 3-5")
    process.send_signal(number)
    writes(gate, WINDOW)
    ended(process)
    deadline = time.monotonic() + SECONDS
    while outlives(process, str(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert outlives(process, str(tmp_path)) == []
    for name in files_below(tmp_path):
        if name.endswith(".json.gz"):
            assert read(tmp_path / name)["traceEvents"]


def test_the_tests_see_what_outlives(tmp_path: Path) -> None:
    training = start(tmp_path, "--at", "0", "print('there', flush=True); time.sleep(600)")
    until(training, "there")
    assert len(outlives(training, "no such mark")) == 1
    training.send_signal(signal.SIGKILL)
    ended(training)
    assert outlives(training, str(tmp_path)) == []

    code = "import time; time.sleep(600)"
    marked = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], start_new_session=True)
    assert len(outlives(training, str(tmp_path))) == 1
    marked.kill()
    marked.wait()
