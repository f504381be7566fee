# SPDX-License-Identifier: Apache-2.0
"""Commands of `torch-trace` as a user meets them: exit status, standard output and error."""

from __future__ import annotations

import io
import signal
import sys
from dataclasses import dataclass

import pytest
from click.testing import CliRunner, Result

from megatron.torch_trace.commands import cli
from megatron.torch_trace.commands import run as run_command

MAIN = [sys.executable, "-c", "from megatron.torch_trace.commands import main; main()"]


@dataclass
class Ended:
    """What a user sees of a command that has ended."""

    returncode: int
    stdout: bytes
    stderr: bytes


def run(*args: object, stdin: bytes = b"") -> Ended:
    """`torch-trace ARGS` in this process, which is ten times as fast as in one of its own."""
    streams = [io.TextIOWrapper(io.BytesIO(data), encoding="utf-8") for data in (stdin, b"", b"")]
    handler = signal.getsignal(signal.SIGTERM)
    status = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["torch-trace", *map(str, args)])
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            patch.setattr(sys, name, stream)
        try:
            status = run_command()
        except SystemExit as end:
            status = int(end.code or 0)
        finally:
            signal.signal(signal.SIGTERM, handler)
    written = []
    for stream in streams[1:]:
        stream.flush()
        assert isinstance(stream.buffer, io.BytesIO)
        written.append(stream.buffer.getvalue())
    return Ended(status, *written)


def invoked(*args: object, **environment: str) -> Result:
    """`torch-trace ARGS` for a test that looks at the exception before it becomes a sentence."""
    return CliRunner().invoke(cli, [str(one) for one in args], env=environment)


def output(*args: object) -> str:
    """What `torch-trace ARGS` writes, which ends well."""
    result = invoked(*args)
    assert result.exception is None, (result.output, result.exception)
    return result.output


def last_line(data: bytes) -> str:
    return data.decode().strip().splitlines()[-1]
