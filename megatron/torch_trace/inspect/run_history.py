# SPDX-License-Identifier: Apache-2.0
"""How long the iterations of a run took, and what happened in which: windows, requests, restarts,
slow ranks, memory that grows, hangs, checkpoints. Read from names of files and small files.

Launches of one training lie beside each other, each in a folder of its own: they are told by the
folder that they save into.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from megatron.torch_trace import wording
from megatron.torch_trace.analysis.results.run_record import RunRecord, Series, read_run
from megatron.torch_trace.format.file_names import METRICS_FILE, RunName, WindowName
from megatron.torch_trace.format.hang_records import HANGS, HangName
from megatron.torch_trace.inspect.named_ranks import SLOW, named_ranks
from megatron.torch_trace.inspect.run_state import Answer, RunState, run_state

_MOST_LAUNCHES = 100
_SLOW_SHARE = 0.05
"""Of an iteration, that the slowest rank of an interval must be slower by to be told."""
_EVERY_ITERATION, _INTERVAL, _INTERVAL_END = (
    "train/step_time_ms",
    "monitor/iteration_ms",
    "monitor/iteration",
)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened.

    Args:
        kind: restart, window, request, slow_rank, memory (of a rank, which grows), hang.
        first, last: global iterations; None where no iteration is known.
        sentence: about it.
        launch: name of the folder of its launch.
    """

    kind: str
    first: int | None
    last: int | None
    sentence: str
    launch: str


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of the training.

    Args:
        name: of its folder.
        milliseconds: by global iteration, ascending; of single iterations, or, where only the
            monitor has logged, the median of each of its intervals at its last iteration.
        single: whether it is of single iterations.
    """

    name: str
    milliseconds: Mapping[int, float]
    single: bool


@dataclass(frozen=True, slots=True)
class RunHistory:
    """A run with its launches.

    Args:
        launches: in order, those before and after the named one too; each has iterations.
        events: by iteration.
        regular: what the flags ask for every so many iterations: checkpoint, evaluation.
        record: run.json and metrics of the named launch.
        faults: what could not be read, one sentence each.
    """

    launches: tuple[Launch, ...]
    events: tuple[Event, ...]
    regular: Mapping[str, int]
    record: RunRecord
    faults: tuple[str, ...]

    @property
    def span(self) -> tuple[int, int] | None:
        """First and last iteration with a time or an event; None if there is none."""
        known = [at for one in self.launches for at in one.milliseconds]
        known += [at for one in self.events for at in (one.first, one.last) if at is not None]
        return (min(known), max(known)) if known else None


def run_history(folder: Path) -> RunHistory:
    """Read the folder of a launch, and those of the same training beside it.

    Raises:
        UsageError: it is no folder of a run.
    """
    folder = folder.absolute()
    run_state(folder)  # refuses what is none
    records = [read_run(one) for one in _launches(folder)]
    record = next(one for one in records if one.folder == str(folder))
    launches = tuple(one for one in map(_launch, records) if one.milliseconds)
    events = [event for one in records for event in _events(one)]
    events += _restarts(launches)
    return RunHistory(
        launches,
        tuple(sorted(events, key=lambda one: (one.first is None, one.first or 0, one.kind))),
        _regular(record.run),
        record,
        tuple(fault for one in records for fault in one.faults),
    )


def _launches(folder: Path) -> list[Path]:
    saves = _saves(read_run(folder).run)
    found = {folder}
    with suppress(OSError):
        near = [one for one in folder.parent.iterdir() if RunName.parse(one.name)]
        for one in sorted(near)[-_MOST_LAUNCHES:] if saves else ():
            if _saves(read_run(one).run) == saves:
                found.add(one)
    return sorted(found)


def _saves(run: Mapping[str, Any]) -> str | None:
    """The folder that the training saves into."""
    arguments = run.get("arguments")
    found = arguments.get("save") if isinstance(arguments, dict) else None
    return found if isinstance(found, str) else None


def _launch(record: RunRecord) -> Launch:
    series = {one.name: one for one in record.metrics}
    name = Path(record.folder).name
    if _EVERY_ITERATION in series:
        one = series[_EVERY_ITERATION]
        return Launch(name, dict(zip(one.iterations, one.values, strict=True)), single=True)
    ends, lengths = _points(series, _INTERVAL_END), _points(series, _INTERVAL)
    both = sorted(ends.keys() & lengths.keys())
    return Launch(name, {int(ends[at]): lengths[at] for at in both}, single=False)


def _points(series: Mapping[str, Series], name: str) -> dict[int, float]:
    found = series.get(name)
    points = zip(found.iterations, found.values, strict=True) if found else ()
    return {at: value for at, value in points if isfinite(value)}


def _events(record: RunRecord) -> Iterator[Event]:
    folder = Path(record.folder)
    state = run_state(folder)
    yield from _windows(state, folder.name)
    for name, answer in state.requested:
        yield _request(name, answer, folder.name)
    yield from _hangs(folder)
    yield from _named(record)


def _windows(state: RunState, launch: str) -> Iterator[Event]:
    for one in state.windows:
        name = WindowName.parse(one.name)
        if name is not None and one.recorded:
            ranks = _ranks(one.recorded)
            words = f"traces of {ranks}" if len(one.recorded) > 1 else f"trace of {ranks}"
            yield Event("window", name.first, name.last, f"{one.name}: {words}.", launch)


def _request(name: str, answer: Answer | None, launch: str) -> Event:
    if answer is None:
        return Event("request", None, None, f"{name}: no answer yet.", launch)
    at = [answer.fields.get(key) for key in ("first", "last")]
    first, last = (one if isinstance(one, int) else None for one in at)
    return Event("request", first, last, f"{name}: {answer.state}: {answer.sentence}", launch)


def _hangs(folder: Path) -> Iterator[Event]:
    ranks: dict[int, set[int]] = {}
    with suppress(OSError):
        for path in (folder / HANGS).iterdir():
            if path.name.endswith(".json") and (name := HangName.parse(path.name)) is not None:
                ranks.setdefault(name.iteration, set()).add(name.rank)
    for iteration, who in sorted(ranks.items()):
        words = f"no iteration ended: hang records of {_ranks(tuple(sorted(who)))}."
        yield Event("hang", iteration, iteration, words, folder.name)


def _named(record: RunRecord) -> Iterator[Event]:
    """Ranks that the monitor has named; where it names no slow one, the slowest of intervals."""
    launch = Path(record.folder).name
    slow = False
    with suppress(OSError), (Path(record.folder) / METRICS_FILE).open("rb") as lines:
        for one in named_ranks(lines):
            slow = slow or one.kind == SLOW
            yield Event(one.kind, one.first, one.last, one.sentence, launch)
    if not slow:
        yield from _slowest({one.name: one for one in record.metrics}, launch)


def _slowest(series: Mapping[str, Series], launch: str) -> Iterator[Event]:
    lengths = _points(series, _INTERVAL)
    ranks, by = _points(series, "monitor/slowest_rank"), _points(series, "monitor/slowest_by_ms")
    ends = _points(series, _INTERVAL_END)
    before = 0
    for at in sorted(ranks.keys() & by.keys() & ends.keys() & lengths.keys()):
        first, before = before + 1, int(ends[at])
        if by[at] >= _SLOW_SHARE * lengths[at]:
            longer = wording.duration(by[at] * 1e6)
            words = f"rank {ranks[at]:.0f} was the slowest of the interval, by {longer}."
            yield Event("slow_rank", first, int(ends[at]), words, launch)


def _restarts(launches: tuple[Launch, ...]) -> Iterable[Event]:
    for one in launches[1:]:
        first = min(one.milliseconds)
        yield Event("restart", first, first, f"{one.name} begins.", one.name)


def _regular(run: Mapping[str, Any]) -> dict[str, int]:
    arguments = run.get("arguments")
    if not isinstance(arguments, dict):
        return {}
    found = {}
    if arguments.get("save"):
        found["checkpoint"] = arguments.get("save_interval")
    if arguments.get("eval_iters"):
        found["evaluation"] = arguments.get("eval_interval")
    return {name: every for name, every in found.items() if isinstance(every, int) and every > 0}


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {wording.ranks(ranks)}"
