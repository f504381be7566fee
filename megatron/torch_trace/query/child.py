# SPDX-License-Identifier: Apache-2.0
"""A query in a process of its own, whose memory, disk and time have a bound.

A query may ask for more than there is, such as every event beside every other one, and polars can
neither be interrupted nor told how much it may take.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from megatron.torch_trace.errors import TorchTraceError, UsageError
from megatron.torch_trace.system import leftovers
from megatron.torch_trace.system.memory import host_memory
from megatron.torch_trace.wording import duration, size

_LEAST_MEMORY = 3 << 30
"""Addresses that polars and its threads reserve before they use any, and some to work with."""
_MOST_MEMORY = 16 << 30
_OUT_OF_MEMORY = (os.EX_OSERR, -signal.SIGABRT, -signal.SIGKILL, -signal.SIGSEGV)
"""`main` says so, an allocation of polars' fails, the system ends it, a thread gets no stack."""
_SENTENCES = {os.EX_USAGE: UsageError, os.EX_DATAERR: TorchTraceError}
"""What `main` ends with behind a sentence; a Python that fails ends with 1 or 2 and a traceback."""
_PACKAGE = str(Path(__file__).parents[2])
_PROGRAM = """
import resource, sys, types
resource.setrlimit(resource.RLIMIT_AS, ({memory}, {memory}))
if {disk}:
    resource.setrlimit(resource.RLIMIT_FSIZE, ({disk}, {disk}))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
# As in this process, whatever hides `megatron` on the path (megatron_torch_profile.py).
sys.modules["megatron"] = types.ModuleType("megatron")
sys.modules["megatron"].__path__ = [{package!r}]
from megatron.torch_trace.query.child import main
main()
"""
_ASK_LESS = "ask for less: filter by rank and step, and join on a call, or on a rank and a step."


def run(
    files: Mapping[str, Path],
    query: str,
    file: Path,
    *,
    seconds: float | None = None,
    disk: int = 0,
) -> None:
    """Write the answer to a query as Parquet.

    Args:
        files: table -> its Parquet file.
        query: a query that only reads (`words.read`).
        file: for the answer.
        seconds: after which the query is ended; None: never.
        disk: bytes that the answer may take; 0 for no bound.

    Raises:
        UsageError: the query is wrong.
        TorchTraceError: it was ended, since it took too long or too much.
    """
    memory = min(_MOST_MEMORY, max(_LEAST_MEMORY, host_memory().free // 2))
    program = _PROGRAM.format(memory=memory, disk=disk, package=_PACKAGE)
    process = leftovers.started(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        # Ctrl-C reaches the terminal's process group: this process says what it means.
        start_new_session=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            "OPENBLAS_NUM_THREADS": "1",
            # Of polars' allocator, which else waits for ever for a thread that gets no memory.
            "_RJEM_MALLOC_CONF": "background_thread:false",
        },
    )
    job = {
        "files": {table: str(path) for table, path in files.items()},
        "query": query,
        "file": str(file),
    }
    try:
        _, said = process.communicate(json.dumps(job).encode(), timeout=seconds)
    except subprocess.TimeoutExpired:
        raise TorchTraceError(
            f"the query was ended after {duration((seconds or 0) * 1e9)}; {_ASK_LESS}"
        ) from None
    finally:
        process.kill()
        if process.stdin is not None:
            with suppress(OSError):  # nobody reads any more what is left to be written
                process.stdin.close()
        process.communicate()
        leftovers.forget_process(process.pid)
    if process.returncode in _SENTENCES:
        raise _SENTENCES[process.returncode](said.decode("utf-8", "replace"))
    if process.returncode in _OUT_OF_MEMORY:
        raise TorchTraceError(
            f"the query was ended, since it takes more than the {size(memory)} of memory that it "
            f"may take; {_ASK_LESS}"
        )
    if process.returncode:
        last = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise TorchTraceError(
            f"the query ended with status {process.returncode} ({last or 'nothing was said'}), "
            f"perhaps since it takes more than {size(memory)} of memory; {_ASK_LESS}"
        )


def main() -> NoReturn:
    """The other process: a mistake is a sentence on standard error."""
    from megatron.torch_trace.query.execution import execute
    from megatron.torch_trace.query.tables import Tables

    job = json.load(sys.stdin)
    files = {table: Path(path) for table, path in job["files"].items()}
    status, said = 0, ""
    try:
        execute(Tables(files).frames(), job["query"], Path(job["file"]))
    except UsageError as error:
        status, said = os.EX_USAGE, str(error)
    except TorchTraceError as error:
        status, said = os.EX_DATAERR, str(error)
    except OSError as error:
        status = os.EX_DATAERR
        said = f"the answer cannot be written ({error.strerror or error}); {_ASK_LESS}"
    except MemoryError:
        status = os.EX_OSERR
    os.write(2, said.encode("utf-8", "backslashreplace"))
    os._exit(status)
