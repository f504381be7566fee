# SPDX-License-Identifier: Apache-2.0
"""A trace_processor of the user's own, for timelines that no browser can hold."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from megatron.torch_trace.errors import TorchTraceError, UsageError
from megatron.torch_trace.system import leftovers
from megatron.torch_trace.wording import size

NATIVE_PORT = 9001
"""Where the UI looks for one."""
UI_PORT = 10000
"""A trace_processor answers pages of https://ui.perfetto.dev and of this port only."""

BROWSER_BYTES = 2_000_000_000
"""Of JSON. In Chromium 188 MB of it take 594 MiB as a compressed timeline with all arguments; the
memory of its WebAssembly ends at 4 GiB, or 16 GiB where it has the 64-bit one."""


def find_binary(name: str) -> Path:
    """The program that `--trace-processor` names.

    Raises:
        UsageError: there is none, or it is the script that would download one.
    """
    found = shutil.which(name)
    if found is None:
        raise UsageError(f"--trace-processor {name}: no such program; give its path.")
    path = Path(found).absolute()
    with path.open("rb") as file:
        start = file.read(512)
    if start.startswith(b"#!") and b"python" in start.splitlines()[0]:
        raise UsageError(
            f"--trace-processor {name}: is the script that downloads trace_processor; give the "
            "binary that it downloads (trace_processor_shell)."
        )
    return path


@contextmanager
def serving(binary: Path, timeline: Path) -> Iterator[None]:
    """trace_processor with the timeline loaded, listening where the UI looks for it.

    Raises:
        TorchTraceError: it cannot be started, or ended before it listened.
    """
    command = [str(binary), "--httpd", "--http-port", str(NATIVE_PORT), str(timeline)]
    try:
        process = leftovers.started(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise TorchTraceError(f"--trace-processor {binary}: {error.strerror}.") from error
    try:
        _wait(process, binary)
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
        leftovers.forget_process(process.pid)


def _wait(process: subprocess.Popen[bytes], binary: Path) -> None:
    """Until it listens, which it does once it has read the timeline."""
    while process.poll() is None:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", NATIVE_PORT)) == 0:
                return
        time.sleep(0.2)
    raise TorchTraceError(
        f"--trace-processor {binary}: ended with status {process.returncode} before it listened on "
        f"port {NATIVE_PORT}; see its message above."
    )


def too_large(raw_bytes: int) -> str | None:
    """What to say of traces that a browser may not hold; None if it does.

    Args:
        raw_bytes: of all traces, as plain JSON.
    """
    if raw_bytes < BROWSER_BYTES:
        return None
    return (
        f"About {size(raw_bytes)} of JSON: a browser may run out of memory. Look at fewer "
        "ranks or one step (torch-trace slim), or pass --trace-processor BIN."
    )
