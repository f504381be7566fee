# SPDX-License-Identifier: Apache-2.0
"""Blocks decoded by other processes, in order, with a bounded number under way.

The processes are plain children that speak pickle over pipes. They do not import the caller's
`__main__`, unlike multiprocessing's, so a notebook or a script without a guard can use them; they
end when their standard input does, however this process ends.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")

_PIPE_BYTES = 1 << 20


class Workers:
    """`count` processes that each compute `function(job)`."""

    def __init__(self, count: int, function: Callable[[Any], Any]) -> None:
        self.count = count
        self.function = function

    def map(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Any]]:
        """(job, function(job)) in the order of `jobs`; at most two jobs a process are under way."""
        children = [Child(self.function) for _ in range(self.count)]
        pending: deque[tuple[Job, Child]] = deque()
        try:
            for number, job in enumerate(jobs):
                child = children[number % self.count]
                if len(pending) == self.count:
                    done, owner = pending.popleft()
                    result = owner.receive()
                    # Give it new work before the old result is used: it must not wait for us.
                    child.send(job)
                    pending.append((job, child))
                    yield done, result
                else:
                    child.send(job)
                    pending.append((job, child))
            while pending:
                done, owner = pending.popleft()
                yield done, owner.receive()
        finally:
            for child in children:
                child.stop()


class Child:
    """One process that computes `function` of what it is sent, in that order."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Ctrl-C reaches the terminal's process group; the parent decides what it means. While
            # Python starts, a child could not ignore it yet and would print a traceback.
            start_new_session=True,
            # Where this process found its modules, the child finds them too.
            # Threads for linear algebra, of which there is none, would cost as much as numpy.
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
                "OPENBLAS_NUM_THREADS": "1",
            },
        )
        _enlarge(self.process.stdin)
        _enlarge(self.process.stdout)
        self.send(function)

    def send(self, value: Any) -> None:
        assert self.process.stdin is not None
        try:
            pickle.dump(value, self.process.stdin, protocol=5)
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise RuntimeError("a reading process has died") from error

    def has_answered(self) -> bool:
        """Whether `receive` would not have to wait for an answer to begin."""
        assert self.process.stdout is not None
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def receive(self) -> Any:
        assert self.process.stdout is not None
        try:
            ok, value = pickle.load(self.process.stdout)
        except EOFError as error:
            raise RuntimeError("a reading process has died") from error
        if not ok:
            raise value
        return value

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            if self.process.stdin:
                self.process.stdin.close()
        if self.process.stdout:
            self.process.stdout.close()
        try:
            self.process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _enlarge(pipe: IO[bytes] | None) -> None:
    """A whole block fits into the pipe, so that neither side waits for the other."""
    if pipe is not None and sys.platform == "linux":
        import fcntl

        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def main() -> None:
    """A child's whole life: a function, then jobs, until standard input ends."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    function = pickle.load(source)
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            job = pickle.load(source)
            try:
                answer = (True, function(job))
            except Exception as error:
                answer = (False, error)
            pickle.dump(answer, sink, protocol=5)
            sink.flush()
    # Leave at once: nothing is open, and interpreter shutdown takes longer than a block.
    sys.stderr.flush()
    os._exit(0)
