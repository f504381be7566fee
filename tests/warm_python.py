# SPDX-License-Identifier: Apache-2.0
"""A Python that has imported torch and forks itself: warm_python.py SOCKET [LIBRARY]...

A launch of two ranks would import the same libraries three times, which takes longer than all that
it shows. What is imported here is of others: Megatron and this project are imported by each program
itself, from its own PYTHONPATH. The command that asks for a fork is warm_command.py; warm_child.py
asks for one that becomes a child of the process that asks.
"""

from __future__ import annotations

import builtins
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import struct
import sys
import threading
import time
import types
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

LIBRARIES = (
    "torch.distributed.run",
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "torch.distributed.checkpoint",
    "torch.distributed.tensor",
    "torch.onnx",
    "torch.utils.cpp_extension",
    "torch.utils.tensorboard",
    "omegaconf",
    "transformers",
    "wandb",
    "yaml",
)
"""What Megatron's training loop imports, unless others are named; not those that are missing."""


def requested(listener: socket.socket) -> dict[str, Any]:
    """Fork for each program that is asked for; returns in the program's own process."""
    while True:
        connection, _ = listener.accept()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if os.fork() == 0:
            listener.close()
            return _begun(connection)
        connection.close()


def _begun(connection: socket.socket) -> dict[str, Any]:
    """Fork again, pass on signals and the status; returns in the program's own process."""
    head, files, _, _ = socket.recv_fds(connection, 8, 3)
    with connection.makefile("rb") as sent:
        request: dict[str, Any] = json.loads(sent.read(int.from_bytes(head, "big")))
    between, program = os.getpid(), os.fork()
    if program == 0:
        _move_to_where_the_command_is(connection)
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        if request.get("child"):
            _become_a_child_of_who_asks(connection, between)
        connection.close()
        return request
    if request.get("child"):
        os._exit(0)
    for file in files:
        os.close(file)
    threading.Thread(target=_pass_on_signals, args=(connection, program), daemon=True).start()
    status = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    with suppress(OSError):
        connection.sendall(str(status).encode())
    os._exit(0)


def _move_to_where_the_command_is(connection: socket.socket) -> None:
    """Into its namespaces and its freezer control group, by which SLURM knows what is of a job."""
    asking = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    (command, *_) = struct.unpack("3i", asking)
    for kind in ("uts", "mnt"):
        if (its := Path(f"/proc/{command}/ns/{kind}")).readlink() != (
            Path(f"/proc/self/ns/{kind}").readlink()
        ):
            with its.open() as space:
                os.setns(space.fileno())
    if (group := _freezer(command)) != _freezer("self"):
        Path(f"/sys/fs/cgroup/freezer{group}/cgroup.procs").write_text(str(os.getpid()))


def _freezer(process: int | str) -> str:
    """The freezer control group of a process; empty where there is none."""
    groups = (
        line.split(":", 2) for line in Path(f"/proc/{process}/cgroup").read_text().splitlines()
    )
    return next((group for _, controllers, group in groups if controllers == "freezer"), "")


def _become_a_child_of_who_asks(connection: socket.socket, between: int) -> None:
    """In a session of its own, as on a terminal; who asks adopts what lost its parent."""
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    while os.getppid() == between:
        time.sleep(0.001)
    connection.sendall(str(os.getpid()).encode())


def _pass_on_signals(connection: socket.socket, program: int) -> None:
    """A byte is the number of a signal; the end of the connection is that of the command."""
    while numbers := connection.recv(16):
        for number in numbers:
            os.kill(program, number)
    with suppress(ProcessLookupError):
        os.kill(program, signal.SIGKILL)


def run(
    request: dict[str, Any], own_path: list[str], folders: list[TemporaryDirectory[str]]
) -> None:
    """What `python` does with such a command line, environment and folder.

    Temporary folders that libraries made when they were imported become folders of this process:
    each process removes them at its end.
    """
    for made in folders:
        made._finalizer.detach()  # type: ignore[attr-defined]
        made.__init__()  # type: ignore[misc]
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    first, *rest = request["command"]
    if first == "-u":
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
        first, *rest = rest
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if first == "-m":
        sys.path[:] = [request["folder"], *given, *own_path]
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    sys.path[:] = [str(Path(first).resolve().parent), *given, *own_path]
    sys.argv = [first, *rest]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__.update(__file__=first, __builtins__=builtins)
    exec(compile(Path(first).read_bytes(), first, "exec"), main.__dict__)


if __name__ == "__main__":
    _given = [str(Path(__file__).parent), *os.environ["PYTHONPATH"].split(os.pathsep)]
    _own_path = [folder for folder in sys.path if folder not in _given]
    for _library in sys.argv[2:] or LIBRARIES:
        with suppress(ImportError):
            importlib.import_module(_library)
    _folders = [one for one in gc.get_objects() if isinstance(one, TemporaryDirectory)]
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as _listener:
        _listener.bind(sys.argv[1])
        _listener.listen(64)
        print("ready", flush=True)
        _request = requested(_listener)
    run(_request, _own_path, _folders)
