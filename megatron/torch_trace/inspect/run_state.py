# SPDX-License-Identifier: Apache-2.0
"""What a run has recorded, is writing and was asked for, as its files tell; only small ones are
read, and no trace."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.files.json_object import read_object
from megatron.torch_trace.format import requests
from megatron.torch_trace.format.file_names import (
    ENDED_FILE,
    METRICS_FILE,
    RUN_FILE,
    TraceName,
    UnfinishedName,
    WindowName,
)
from megatron.torch_trace.format.hang_records import HANGS, HangName
from megatron.torch_trace.format.json_text import value_of
from megatron.torch_trace.inspect.named_ranks import NamedRank, named_ranks
from megatron.torch_trace.inspect.sign_of_life import SignOfLife, sign_of_life
from megatron.torch_trace.wording import path_text

_TAIL_BYTES = 1 << 18
"""Of the numbers of the run, which grow as long as it trains."""
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a request.

    Args:
        state: accepted, refused, done or failed.
        sentence: about it.
        fields: the whole file.
    """

    state: str
    sentence: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class WindowState:
    """The files of a window.

    Args:
        name: of its folder.
        recorded: ranks whose trace is there.
        writing: ranks whose trace has only its temporary file.
    """

    name: str
    recorded: tuple[int, ...]
    writing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RunState:
    """A run.

    Args:
        plan: of `run.json`; None if that is not there or not whole.
        windows: by their iterations.
        requested: names of requests, ascending, with their answers.
        monitor: the last line of numbers of the monitor; empty without one.
        named: the last ranks that the monitor has named.
        hung: ranks that have left hang records, with the last iteration of each.
        life: the last sign of life of the training; None if nothing is there that it writes.
    """

    plan: dict[str, Any] | None
    windows: tuple[WindowState, ...]
    requested: tuple[tuple[str, Answer | None], ...]
    monitor: dict[str, float]
    named: tuple[NamedRank, ...]
    hung: dict[int, int]
    life: SignOfLife | None


def refuse_all_but_a_folder(run: Path) -> None:
    """What is no folder is not the folder of a run.

    Raises:
        UsageError: it is a file, or nothing.
    """
    if not run.is_dir():
        what = "is a file" if run.is_file() else "no such folder"
        raise UsageError(f"{path_text(run)}: {what}; name the folder of a run.")


def run_state(run: Path) -> RunState:
    """Read the folder of a run.

    Raises:
        UsageError: it is none.
    """
    refuse_all_but_a_folder(run)
    windows = sorted(
        (name, folder) for folder in run.iterdir() if (name := WindowName.parse(folder.name))
    )
    if not windows and not (run / RUN_FILE).is_file():
        raise UsageError(f"{path_text(run)}: is not the folder of a run, which holds {RUN_FILE}.")
    folder = run / requests.REQUESTS
    logged = _tail(run / METRICS_FILE)
    plan = _object(run / RUN_FILE).get("plan")
    requested = tuple((name, answer_of(folder, name)) for name in sorted(_names(folder)))
    told = [answer.sentence for _, answer in requested if answer and answer.state == "refused"]
    return RunState(
        plan,
        tuple(_window(folder) for _, folder in windows),
        requested,
        _last_of_monitor(logged),
        tuple(named_ranks(logged))[-_MOST_NAMED:],
        _hung(run / HANGS),
        sign_of_life(
            run,
            plan,
            logged,
            refused=requests.TRAINING_HAS_ENDED in told,
            ended=_object(run / ENDED_FILE),
        ),
    )


def answer_of(folder: Path, name: str) -> Answer | None:
    """The answer to a request; None if there is none yet."""
    fields = _object(folder / (name + requests.ANSWER_SUFFIX))
    state, sentence = fields.get("state"), fields.get("says")
    if not isinstance(state, str) or not isinstance(sentence, str):
        return None
    return Answer(state, sentence, fields)


def _names(folder: Path) -> Iterator[str]:
    with suppress(OSError):
        for path in folder.iterdir():
            if requests.is_request(path.name):
                yield path.name.removesuffix(requests.SUFFIX)


def _window(folder: Path) -> WindowState:
    recorded, writing = set(), set()
    with suppress(OSError):
        for path in folder.iterdir():
            if trace := TraceName.parse(path.name):
                recorded.add(trace.rank)
            elif (on_its_way := UnfinishedName.parse(path.name)) and (
                trace := TraceName.parse(on_its_way.trace)
            ):
                writing.add(trace.rank)
    return WindowState(folder.name, tuple(sorted(recorded)), tuple(sorted(writing - recorded)))


def _tail(path: Path) -> list[bytes]:
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        return file.read().splitlines()
    return []


def _last_of_monitor(logged: list[bytes]) -> dict[str, float]:
    for line in reversed(logged):
        if b'"monitor/iteration"' in line:
            with suppress(ValueError, AttributeError, TypeError, OverflowError):
                told = value_of(line).items()
                numbers = {key: float(of) for key, of in told if key.startswith("monitor/")}
                # JSON knows no others, and --json prints them.
                return {key: number for key, number in numbers.items() if isfinite(number)}
    return {}


def _hung(folder: Path) -> dict[int, int]:
    found: dict[int, int] = {}
    with suppress(OSError):
        for path in folder.iterdir():
            name = HangName.parse(path.name)
            if name is not None:
                found[name.rank] = max(name.iteration, found.get(name.rank, 0))
    return dict(sorted(found.items()))


def _object(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        return read_object(path)
    return {}
