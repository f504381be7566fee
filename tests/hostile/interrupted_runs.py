# SPDX-License-Identifier: Apache-2.0
"""Commands in processes of their own that are stopped at a moment told by number, not by a clock.

A moment is an event of Python's audit hooks that opens a trace or changes files or processes: it is
the same one in every run. What a run must not leave is looked for afterwards.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
_MARK = "TORCH_TRACE_TEST_RUN"
_PROGRAM = """
import os, shutil, signal, sys
me, seen, moment = os.getpid(), 0, int(os.environ["MOMENT"])
what, target = os.environ["WHAT"], os.environ["TARGET"]
log = os.open(os.environ["LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
CHANGES = ("os.mkdir", "os.link", "os.rename", "os.remove", "os.rmdir", "subprocess.Popen")

def counts(event, args):
    if event == "open":
        makes = isinstance(args[2], int) and args[2] & os.O_CREAT
        return makes or str(args[0]).endswith((".json", ".json.gz"))
    return event in CHANGES

def happens():
    if what == "truncate":
        os.truncate(target, os.stat(target).st_size // 2)
    elif what == "grow":
        with open(target, "ab") as file:
            file.write(b"more" * 1000)
    elif what == "remove":
        shutil.rmtree(target) if os.path.isdir(target) else os.unlink(target)
    elif what:
        os.kill(me, getattr(signal, what))

def hook(event, args):
    global seen
    if os.getpid() == me and counts(event, args):
        seen += 1
        os.write(log, f"{event} {args[0]!r}\\n".encode())
        if seen == moment:
            happens()

sys.addaudithook(hook)
from megatron.torch_trace.commands import main
main()
"""


@dataclass(frozen=True)
class Ended:
    """How a run ended.

    Args:
        events: the moments that there were.
        children: processes of the run that live on.
    """

    status: int
    stdout: str
    stderr: str
    events: list[str]
    children: list[int]


def run(
    arguments: Sequence[object],
    folder: Path,
    *,
    moment: int = 0,
    what: str = "",
    target: Path | None = None,
    wrapper: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    source: IO[bytes] | None = None,
    timeout: float = 400,
) -> Ended:
    """`torch-trace ARGUMENTS`, to which something happens at a moment.

    Args:
        moment: counted from 1; 0 for none.
        what: name of a signal, or what happens to `target`: `truncate`, `grow`, `remove`.
        folder: for the log of events, and the folder in which it runs.
        source: standard input.
        wrapper: put before the command, such as `("prlimit", "--nofile=20")`.
    """
    mark = uuid.uuid4().hex
    log = folder / f"{mark}.events"
    process = subprocess.run(
        [*wrapper, sys.executable, "-c", _PROGRAM, *map(str, arguments)],
        cwd=folder,
        stdin=source or subprocess.DEVNULL,
        capture_output=True,
        timeout=timeout,
        check=False,
        # A closed terminal ends the command, also where the tests run under nohup.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            # Else a first run has moments that a second one has not.
            "PYTHONDONTWRITEBYTECODE": "1",
            "MOMENT": str(moment),
            "WHAT": what,
            "TARGET": str(target or ""),
            "LOG": str(log),
            _MARK: mark,
            **(environment or {}),
        },
    )
    children = _living(mark)
    deadline = time.monotonic() + 120
    while children and time.monotonic() < deadline:
        time.sleep(0.05)
        children = _living(mark)
    events = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return Ended(
        process.returncode,
        process.stdout.decode("utf-8", "replace"),
        process.stderr.decode("utf-8", "replace"),
        events,
        children,
    )


def _living(mark: str) -> list[int]:
    """Processes that have inherited the mark of a run."""
    wanted, found = f"{_MARK}={mark}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def unfinished(folder: Path) -> list[str]:
    """Names of temporary files and folders at or below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.tmp"))
