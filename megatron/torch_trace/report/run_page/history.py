# SPDX-License-Identifier: Apache-2.0
"""A whole run: iteration times with marks of what happened, and what happened as a table.

`sections_of_run` is for the page of a run; it needs no trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from megatron.torch_trace import wording
from megatron.torch_trace.inspect.run_history import Event, RunHistory, run_history
from megatron.torch_trace.report.section import Section
from megatron.torch_trace.report.tables import Column, Row, Table, number, text

WIDTH, HEIGHT = 1000, 160
_COLUMNS = 500
_MOST_TIMES_MEDIAN = 4.0
"""What takes longer than so many medians is drawn at the edge."""
_MOST_MARKS = 500
_LANES = (
    ("window", "windows"),
    ("request", "requests"),
    ("slow_rank", "slow ranks"),
    ("memory", "growing memory"),
    ("hang", "hangs"),
)


_EVENT_NAMES = {
    "restart": "restart",
    "window": "window",
    "request": "request",
    "slow_rank": "slow rank",
    "memory": "growing memory",
    "hang": "hang",
}
_SHOWN_EVENTS = 30


def sections_of_run(folder: Path) -> list[Section]:
    """`iterations` and `events` of a run.

    Args:
        folder: of the run, with `run.json`.

    Raises:
        UsageError: it is no folder of a run.
    """
    history = run_history(folder)
    timeline = timeline_of(history)
    if timeline is None:
        missing = "The run has logged no iteration (--torch-profile-monitor, or metrics.jsonl)."
        return [Section("iterations", "Iterations", missing)]
    drawn = {"timeline": timeline, "width": WIDTH, "height": HEIGHT}
    return [
        Section("iterations", "Iterations", data=drawn),
        Section(
            "events",
            "What happened",
            None if history.events else "Nothing but iterations.",
            tables=[_table(history)],
            rest="torch-trace status --json has the same events.",
        ),
    ]


def _table(history: RunHistory) -> Table:
    columns = (
        Column("iteration"),
        Column("what", number=False),
        Column("what is known", number=False),
    )
    rows = tuple(
        Row(
            (
                number(-1 if one.first is None else one.first, _at(one)),
                text(_EVENT_NAMES[one.kind]),
                text(one.sentence),
            )
        )
        for one in history.events
    )
    return Table("events-table", "By iteration", columns, rows, each="event", limit=_SHOWN_EVENTS)


def _at(event: Event) -> str:
    if event.first is None:
        return wording.UNKNOWN
    last = event.first if event.last is None else event.last
    return f"{event.first:,}" if last == event.first else f"{event.first:,} to {last:,}"


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark in a lane, in per cent of the width."""

    kind: str
    left: float
    width: float
    told: str


@dataclass(frozen=True, slots=True)
class Lane:
    """A row of marks below the curve."""

    label: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """What a template draws.

    Args:
        paths: a curve for each launch, in WIDTH x HEIGHT.
        restarts: x of the begin of each launch but the first, and what it is.
        lanes: those that have marks.
        ticks: of iterations, in per cent.
        top, bottom: durations at the edges of the curve.
        told: the curve in words.
        notes: sentences below.
    """

    paths: tuple[str, ...]
    restarts: tuple[tuple[float, str], ...]
    lanes: tuple[Lane, ...]
    ticks: tuple[tuple[float, str], ...]
    top: str
    bottom: str
    told: str
    notes: tuple[str, ...]


def timeline_of(history: RunHistory) -> Timeline | None:
    """The picture of a run; None where no iteration is known."""
    if history.span is None:
        return None
    first, last = history.span
    scale = _Scale(first, last + 1)
    values = [ms for one in history.launches for ms in one.milliseconds.values()]
    usual = median(values) if values else 0.0
    top = min(max(values, default=1.0), _MOST_TIMES_MEDIAN * usual or 1.0)
    paths = tuple(_path(one.milliseconds, scale, top) for one in history.launches)
    restarts = tuple(
        (round(scale.x(one.first), 2), one.sentence)
        for one in history.events
        if one.kind == "restart" and one.first is not None
    )
    return Timeline(
        paths,
        restarts,
        tuple(_lanes(history, scale)),
        tuple((scale.percent(at), f"{at:,}") for at in _ticks(first, last)),
        wording.duration(top * 1e6) if values else "",
        "0" if values else "",
        _told(history, usual),
        tuple(_notes(history, values, top)),
    )


class _Scale:
    """Iterations to the width: an iteration has a width of its own."""

    def __init__(self, begin: int, end: int) -> None:
        self._begin, self._length = begin, end - begin

    def x(self, iteration: float) -> float:
        return WIDTH * (iteration - self._begin) / self._length

    def percent(self, iteration: float) -> float:
        return round(100 * (iteration - self._begin) / self._length, 3)


def _path(milliseconds: Mapping[int, float], scale: _Scale, top: float) -> str:
    columns: dict[int, list[float]] = {}
    for at, ms in milliseconds.items():
        columns.setdefault(int(scale.x(at + 0.5) * _COLUMNS / WIDTH), []).append(ms)
    points = []
    for column, values in sorted(columns.items()):
        x = (column + 0.5) * WIDTH / _COLUMNS
        # The longest and the shortest of a column: neither is lost.
        points += [(x, value) for value in dict.fromkeys((min(values), max(values)))]
    drawn = [f"{x:.1f} {HEIGHT * (1 - min(ms, top) / top):.1f}" for x, ms in points]
    return f"M{' L'.join(drawn)}" if len(drawn) > 1 else f"M{drawn[0]} h1"


def _lanes(history: RunHistory, scale: _Scale) -> Iterable[Lane]:
    for kind, label in _LANES:
        mine = [one for one in history.events if one.kind == kind and one.first is not None]
        if mine:
            yield Lane(label, tuple(_mark(one, scale) for one in mine[:_MOST_MARKS]))
    span = history.span
    for kind, every in history.regular.items():
        assert span is not None
        at = range(-(-span[0] // every) * every, span[1] + 1, every)
        if 0 < len(at) <= _MOST_MARKS:
            marks = (Mark(kind, scale.percent(one), 0.0, f"{kind} after {one:,}") for one in at)
            yield Lane(f"{kind}s", tuple(marks))


def _mark(event: Event, scale: _Scale) -> Mark:
    first = event.first or 0
    last = first if event.last is None else event.last
    left = scale.percent(first)
    said = f"{wording.iterations(_range(first, last))}: {event.sentence}"
    return Mark(event.kind, left, round(scale.percent(last + 1) - left, 3), said)


def _range(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first}-{last}"


def _ticks(first: int, last: int) -> Sequence[int]:
    step = 1
    while (last - first) / step > 8:
        step = step * 5 // 2 if str(step).startswith("2") else 2 * step
    return range(-(-first // step) * step, last + 1, step)


def _told(history: RunHistory, usual: float) -> str:
    first, last = history.span or (0, 0)
    return (
        f"Iterations {first:,} to {last:,}: the median takes {wording.duration(usual * 1e6)}."
        if usual
        else f"Iterations {first:,} to {last:,}. The run has not noted how long they took; "
        "--torch-profile-monitor does, and --log-timers-to-wandb, also without W&B."
    )


def _notes(history: RunHistory, values: Sequence[float], top: float) -> Iterable[str]:
    beyond = [ms for ms in values if ms > top]
    if beyond:
        one = len(beyond) == 1
        yield (
            f"{wording.counted(len(beyond), 'iteration')} {'is' if one else 'are'} longer than the "
            f"picture is high, the longest {wording.duration(max(beyond) * 1e6)}."
        )
    if any(not one.single for one in history.launches):
        yield "Each point is the median of an interval of the monitor."
    for kind, every in history.regular.items():
        what = f"{kind.capitalize()}s are drawn where the flags ask for them"
        yield f"{what}: every {every:,} iterations."
