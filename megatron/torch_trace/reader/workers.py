# SPDX-License-Identifier: Apache-2.0
"""Blocks decoded by other processes, in order, with a bounded number under way.

The processes are plain children that speak pickle over pipes. They do not import the caller's
`__main__`, unlike multiprocessing's, so a notebook or a script without a guard can use them; they
end when their standard input does, however this process ends.

Starting one takes as long as reading 30 MB. A program that knows it will need some
works inside `started_early`: they import while it does, and serve one reading after another.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

from megatron.torch_trace.errors import ReaderDiedError
from megatron.torch_trace.system import leftovers

Job = TypeVar("Job")

SMALL_BYTES = 3 << 19
"""Compressed size below which starting other processes costs more than it gives."""
_PIPE_BYTES = 1 << 20
_END_SECONDS = 1.0
"""How long a process that has lost its input may take to end by itself."""
_DIED = "a process that read for this command died, maybe for lack of memory; try -j 1."


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


_spare: list[subprocess.Popen[bytes]] = []
"""Processes that have no work; none outside of `started_early`, so that a notebook keeps none."""
_early: set[int] = set()
"""The process ids of those that `started_early` started."""


@contextlib.contextmanager
def started_early(
    count: int, paths: Iterable[Path | str], imports: str, first: str = ""
) -> Iterator[None]:
    """Start `count` processes now; they serve every `Child` of the context, one after another.

    Args:
        paths: what will be read; if all are small none is started, because none will be needed.
        imports: a module that they will need and can import meanwhile.
        first: a statement that one of them does after that, until it is asked for something.
    """
    if count > 0 and any(map(is_large, paths)):
        for number in range(count):
            begins = f"; {first}" if first and not number else ""
            process = _start(f"import {imports}{begins}")
            _early.add(process.pid)
            _spare.append(process)
    try:
        yield
    finally:
        end_early()


def end_early() -> None:
    """End the processes of `started_early` that have no work, for the sake of their memory."""
    while _spare:
        process = _spare.pop()
        _early.discard(process.pid)
        _end(process)


def is_large(path: Path | str) -> bool:
    """Whether several processes read a file faster than one."""
    return _size(path) >= SMALL_BYTES


def are_small(paths: Iterable[Path | str]) -> bool:
    """Whether one process reads all of these before two would have started and read them."""
    return sum(map(_size, paths)) < 2 * SMALL_BYTES


def _size(path: Path | str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        if process.stdin:
            process.stdin.close()
    if process.stdout:
        process.stdout.close()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    finally:
        leftovers.forget_process(process.pid)


_PACKAGE = str(Path(__file__).parents[2])
_PROGRAM = """
import gc, os, sys, types
# Events are made by the thousand and have no cycles: looking for some takes a twentieth.
gc.set_threshold(100_000)
try:
    # As in this process, whatever hides `megatron` on the path (megatron_torch_profile.py).
    sys.modules["megatron"] = types.ModuleType("megatron")
    sys.modules["megatron"].__path__ = [{package!r}]
    {first}
    from {module} import main
except BaseException:
    os._exit(1)
main()
"""
"""One that cannot even start lacks memory or files: this process says so, in a sentence."""


def _start(first: str = "pass") -> subprocess.Popen[bytes]:
    process = leftovers.started(
        [sys.executable, "-c", _PROGRAM.format(first=first, module=__name__, package=_PACKAGE)],
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
    _enlarge(process.stdin)
    _enlarge(process.stdout)
    return process


class Child:
    """One process that computes `function` of what it is sent, in that order."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.process = _spare.pop() if _spare else _start()
        self._unanswered = 0
        self._send(function)

    def send(self, job: Any) -> None:
        self._unanswered += 1
        self._send(job)

    def _send(self, value: Any) -> None:
        assert self.process.stdin is not None
        try:
            pickle.dump(value, self.process.stdin, protocol=5)
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise ReaderDiedError(_DIED) from error

    def has_answered(self) -> bool:
        """Whether `receive` would not have to wait for an answer to begin."""
        assert self.process.stdout is not None
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def receive(self) -> Any:
        assert self.process.stdout is not None
        try:
            ok, value = pickle.load(self.process.stdout)
        except (EOFError, pickle.UnpicklingError) as error:
            # The second if it was killed in the middle of an answer.
            raise ReaderDiedError(_DIED) from error
        self._unanswered -= 1
        if not ok:
            raise value
        return value

    def stop(self) -> None:
        """No more work: the process ends, or waits for the next `Child` if it was started early."""
        if self.process.pid in _early and not self._unanswered:
            with contextlib.suppress(ReaderDiedError):
                self._send(_Enough())
                _spare.append(self.process)
                return
        _early.discard(self.process.pid)
        _end(self.process)


def _enlarge(pipe: IO[bytes] | None) -> None:
    """A whole block fits into the pipe, so that neither side waits for the other."""
    if pipe is not None and sys.platform == "linux":
        import fcntl

        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def _end_with_parent(pipe: int) -> None:
    """A parent that was killed asks for no answer, however long this one takes to compute it."""
    poll = select.poll()
    poll.register(pipe, 0)
    poll.poll()
    os._exit(0)


class _Enough:
    """Sent instead of a job: another function follows."""


def main() -> None:
    """A child's whole life: a function, then jobs, and so on until standard input ends."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    threading.Thread(target=_end_with_parent, args=(source.fileno(),), daemon=True).start()
    # Out of memory while it reads a job or answers: the parent sees that it died.
    with contextlib.suppress(EOFError, BrokenPipeError, MemoryError):
        while True:
            function = pickle.load(source)
            while not isinstance(job := pickle.load(source), _Enough):
                try:
                    answer = (True, function(job))
                except Exception as error:
                    answer = (False, error)
                pickle.dump(answer, sink, protocol=5)
                sink.flush()
    # Leave at once: nothing is open, and interpreter shutdown takes longer than a block.
    sys.stderr.flush()
    os._exit(0)
