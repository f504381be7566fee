# SPDX-License-Identifier: Apache-2.0
"""Whether a training has ended, as far as the files of its run tell.

A training that leaves its loop writes that it has ended; whoever is killed writes nothing more. So
there are an end that is known, and the time of the last file that the training has written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from megatron.torch_trace.format.file_names import (
    ENDED_FILE,
    METRICS_FILE,
    RUN_FILE,
    TraceName,
    WindowName,
)
from megatron.torch_trace.format.json_text import value_of
from megatron.torch_trace.format.requests import ANSWER_SUFFIX, REQUESTS

_MOST_TRACES = 16
"""Of the last window; all of them are written at about the same time."""


@dataclass(frozen=True, slots=True)
class SignOfLife:
    """What a training has written last.

    Args:
        at_s: when, in seconds since 1970 by the clock of the file system.
        file: its path below the run's folder.
        iteration: the last one that was logged; None without one.
        last_iteration: the last one that this launch is to run; None if that is not known.
        refused: a request was refused because training had ended.
        left_loop: training has left its loop.
        error: the kind of error with which it did; None without one.
    """

    at_s: float
    file: str
    iteration: int | None
    last_iteration: int | None
    refused: bool
    left_loop: bool = False
    error: str | None = None

    @property
    def has_ended(self) -> bool | None:
        """True where the files tell the end; None where they do not."""
        logged, last = self.iteration, self.last_iteration
        reached = logged is not None and last is not None and logged >= last
        return True if reached or self.refused or self.left_loop else None


def sign_of_life(
    run: Path,
    plan: dict[str, Any] | None,
    logged: Iterable[bytes],
    *,
    refused: bool,
    ended: dict[str, Any],
) -> SignOfLife | None:
    """The last one; None where nothing is there that training writes.

    Args:
        run: folder of the run.
        plan: of `run.json`.
        logged: the last lines of the run's numbers.
        refused: see `SignOfLife`.
        ended: content of `ended.json`; empty without one.
    """
    times = []
    for path in _written(run):
        with suppress(OSError):
            times.append((path.stat().st_mtime, path.relative_to(run).as_posix()))
    if not times:
        return None
    last = (plan if isinstance(plan, dict) else {}).get("last_iteration")
    iterations = [one for line in logged if (one := _iteration(line)) is not None]
    return SignOfLife(
        *max(times),
        iteration=max(iterations, default=None),
        last_iteration=last if isinstance(last, int) else None,
        refused=refused,
        left_loop=isinstance(ended.get("ended"), str),
        error=error if isinstance(error := ended.get("error"), str) else None,
    )


def _written(run: Path) -> Iterator[Path]:
    """What training itself writes, and nobody after it."""
    yield run / RUN_FILE
    yield run / ENDED_FILE
    yield run / METRICS_FILE
    with suppress(OSError):
        yield from (run / REQUESTS).glob(f"*{ANSWER_SUFFIX}")
    windows = []
    with suppress(OSError):
        windows = [(name, one) for one in run.iterdir() if (name := WindowName.parse(one.name))]
    if windows:
        with suppress(OSError):
            traces = (one for one in max(windows)[1].iterdir() if TraceName.parse(one.name))
            yield from islice(traces, _MOST_TRACES)


def _iteration(line: bytes) -> int | None:
    with suppress(ValueError, AttributeError, TypeError, OverflowError):
        found = value_of(line).get("iteration")
        return int(found) if isinstance(found, (int, float)) else None
    return None
