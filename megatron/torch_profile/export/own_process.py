# SPDX-License-Identifier: Apache-2.0
"""This process: what memory it holds, who is to go first should memory run out, how it ends.

How much memory it may still take says `megatron.torch_trace.system.memory`.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from megatron.torch_trace.errors import TorchTraceError


def resident_bytes() -> int:
    """Memory that this process holds; 0 on systems that do not tell (macOS)."""
    return _pages(1) * os.sysconf("SC_PAGE_SIZE")


def address_space_bytes() -> int:
    """What counts against `ulimit -v`; 0 on systems that do not tell (macOS)."""
    return _pages(0) * os.sysconf("SC_PAGE_SIZE")


def _pages(field: int) -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[field])
    except OSError:
        return 0


def be_killed_first(proc: Path = Path("/proc")) -> None:
    """Should memory run out, the kernel is to end this process and not the training beside it.

    Source: the kernel's documentation of /proc/<pid>/oom_score_adj; 1000 is the most.
    """
    with suppress(OSError):
        (proc / "self" / "oom_score_adj").write_text("1000")


def end_with_parent() -> None:
    """Have the kernel end this process with training, however that ends."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def give_way() -> None:
    """Leave the cores to training, and end with it."""
    os.nice(19)
    end_with_parent()
    start_no_threads()


def start_no_threads() -> None:
    """Have polars and numpy, which are not imported yet, start none for each core of the host."""
    for name in ("POLARS_MAX_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")


def leave_at_once() -> NoReturn:
    """End this process, which has said all, without freeing its modules and objects one by one."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def answer_training(work: Callable[[dict[str, Any]], None]) -> None:
    """Do some work beside training, and print one line of JSON that tells training what came of it.

    Args:
        work: fills the answer. If it raises, the answer holds what it has filled so far, and
            `error`: a line for training's log, where a traceback would lie between its own lines.
    """
    give_way()
    answer: dict[str, Any] = {}
    try:
        work(answer)
    except (OSError, TorchTraceError) as error:  # which name the file, and what is wrong with it
        answer["error"] = str(error) or type(error).__name__
    except Exception as error:
        answer["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(answer))


def leave_without_destructors() -> None:
    """Have this process end as it would, without the destructors of C++, should it end now.

    Kineto's destructors wait for its threads, which a fork does not have, and take down what a
    thread may still work with. glibc's `on_exit` passes the status on; Python has ended by then,
    and has written what it held.
    """
    with suppress(AttributeError, OSError):  # another C library
        libc = ctypes.CDLL(None)
        libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)
