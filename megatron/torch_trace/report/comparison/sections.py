# SPDX-License-Identifier: Apache-2.0
"""The tables of a comparison as cells, for the terminal and for the page alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from megatron.torch_trace.analysis.compare.comparison import Comparison, RankDifference
from megatron.torch_trace.analysis.compare.statistics import Difference
from megatron.torch_trace.analysis.compare.tables import CommunicationDifference, WorkDifference
from megatron.torch_trace.analysis.timeline.kernel_names import short_name
from megatron.torch_trace.format.breakdown_parts import BREAKDOWN_HEADS
from megatron.torch_trace.report.comparison.words import (
    change,
    interval,
    known_change,
    pair,
    part_name,
    relative,
    significant,
)
from megatron.torch_trace.report.shapes import shape_in_words
from megatron.torch_trace.report.tables import Cell, Column, Row, Table
from megatron.torch_trace.wording import NONE, UNKNOWN, count, counted, milliseconds, percent, speed

_MOST_RANKS = 16
_LEAST_NS = 1_000
_MEANS = "ms an iteration, mean of the ranks"


def sections(comparison: Comparison, *, top: int, ranks: int = _MOST_RANKS) -> list[Table]:
    """Every table that has rows; `top` rows of work, `ranks` ranks."""
    found = [
        _breakdown(comparison),
        _ranks(comparison, ranks),
        _stragglers(comparison, ranks),
        _communication(comparison.communication),
        _work("Kernels", "kernel", comparison.kernels, top),
        _one_sided("B", "kernel", comparison.kernels, top),
        _one_sided("A", "kernel", comparison.kernels, top),
        _work("Operators by shape", "operator", comparison.shapes, top),
        _work("Phases of the loop", "phase", comparison.phases, top, "ms an iteration of the CPU"),
        _work("Classes of modules", "class", comparison.module_classes, top),
        _work("Modules", "module", comparison.modules, top),
    ]
    return [table for table in found if table.rows]


def configuration(comparison: Comparison, *, top: int) -> Table:
    """What differed before anything ran; three times `top` rows."""
    changes, most = comparison.configuration.changes, 3 * top
    rows = [(one.kind, one.name, _given(one.before), _given(one.after)) for one in changes[:most]]
    columns = (_word("kind"), *(_word(title, cut=True) for title in ("what", "A", "B")))
    return _table("Different configuration", "", columns, rows, more=max(0, len(changes) - most))


def configuration_sentence(comparison: Comparison) -> str | None:
    """What the table cannot say: nothing differs, or nothing is known; None if it says it all."""
    configuration = comparison.configuration
    if configuration.same_run:
        return "A and B are of the same run, so their configuration is the same."
    if configuration.not_recorded:
        who = " and ".join(configuration.not_recorded)
        verb = "have" if len(configuration.not_recorded) > 1 else "has"
        return (
            f"The flags cannot be compared: {who} {verb} no run.json beside the traces and no "
            "command line in the traces."
        )
    return None if configuration.changes else "The recorded configuration is the same."


def _table(
    heading: str,
    note: str,
    columns: Sequence[Column],
    rows: Iterable[tuple[str, ...]],
    *,
    full: Sequence[str] = (),
    more: int = 0,
) -> Table:
    """A table whose first cell is a short name of what `full` names, for each row."""
    lines = tuple(
        Row((Cell(first, full=full[n] if full else None), *map(Cell, others)))
        for n, (first, *others) in enumerate(rows)
    )
    return Table(
        heading.lower().replace(" ", "-"),
        heading,
        tuple(columns),
        lines,
        f"{counted(more, 'more row')}: torch-trace compare --json has all rows." if more else "",
        more,
        brief=f"{heading.upper()} ({note})" if note else heading.upper(),
        note=note,
    )


def _word(title: str, *, cut: bool = False) -> Column:
    return Column(title, number=False, cut=cut)


def _numbers(*titles: str) -> tuple[Column, ...]:
    return tuple(Column(title) for title in titles)


def _given(text: str | None) -> str:
    return NONE if text is None else text or "given"


def _breakdown(comparison: Comparison) -> Table:
    rows = [_row("iteration", comparison.iteration)]
    rows += [
        _row(part_name(name), part) for name, part in comparison.breakdown.items() if _matters(part)
    ]
    rows += [
        _row(f"exposed in {name}", part)
        for name, part in comparison.dimensions.items()
        if _matters(part)
    ]
    return _table(
        "Where the time went",
        _MEANS,
        (_word("part"), *_numbers("A", "B", "change", "", "95 % interval", "sure"), _word("over")),
        rows,
    )


def _row(name: str, part: Difference) -> tuple[str, ...]:
    return (
        name,
        *(UNKNOWN if ns is None else milliseconds(ns) for ns in (part.before, part.after)),
        known_change(part),
        "" if part.before is None or part.after is None else relative(part),
        interval(part),
        significant(part),
        (part.over or NONE).split(",")[0],
    )


def _matters(part: Difference) -> bool:
    return max(part.before or 0, part.after or 0) >= _LEAST_NS


_OF_RANKS = ("iteration", "compute", "exposed_communication", "idle")


def _ranks(comparison: Comparison, most: int) -> Table:
    """Of more than `most` ranks those that changed most, in their order."""
    ranks = comparison.ranks if len(comparison.ranks) > 1 else ()
    if len(ranks) > most:
        ranks = tuple(sorted(sorted(ranks, key=_most_change)[-most:], key=lambda one: one.rank))
    names = [name for name in _OF_RANKS if any(name in {*one.before, *one.after} for one in ranks)]
    heads = [head for name in names for head in (BREAKDOWN_HEADS.get(name, name), "")]
    return _table(
        "Ranks",
        "ms an iteration, A -> B",
        _numbers("rank", *heads),
        tuple(_rank(one, names) for one in ranks),
        more=len(comparison.ranks) - len(ranks) if ranks else 0,
    )


def _rank(one: RankDifference, names: Iterable[str]) -> tuple[str, ...]:
    cells = [str(one.rank)]
    for name in names:
        sides = one.before.get(name), one.after.get(name)
        cells.append(" -> ".join(UNKNOWN if ns is None else milliseconds(ns) for ns in sides))
        cells.append(known_change(Difference(*sides)))
    return tuple(cells)


def _most_change(one: RankDifference) -> float:
    both = [name for name in _OF_RANKS if name in one.before and name in one.after]
    return max((abs(one.after[name] - one.before[name]) for name in both), default=0.0)


def _stragglers(comparison: Comparison, most: int) -> Table:
    rows = tuple(
        (
            str(one.rank),
            milliseconds(one.before or None),
            milliseconds(one.after or None),
            NONE if one.last_before is None else percent(one.last_before),
            NONE if one.last_after is None else percent(one.last_after),
            one.mostly or NONE,
        )
        for one in comparison.stragglers
    )
    return _table(
        "Stragglers",
        "ms an iteration that each other rank waits; how often it is last",
        (*_numbers("rank", "A", "B", "last in A", "last in B"), _word("mostly in")),
        rows[:most],
        more=max(0, len(rows) - most),
    )


def _communication(rows: Iterable[CommunicationDifference]) -> Table:
    shown = [row for row in rows if _matters(row.time)]
    alike = Counter((row.dimension, row.collective) for row in shown)
    return _table(
        "Communication",
        f"{_MEANS}; busbw GB/s",
        (
            _word("dim", cut=True),
            _word("collective"),
            *_numbers("calls", "A", "B", "change", "exposed", "wait", "busbw", "sure"),
        ),
        tuple(
            (
                f"{row.dimension} {row.group}"
                if alike[row.dimension, row.collective] > 1
                else row.dimension,
                row.collective,
                _both(row.calls),
                milliseconds(row.time.before),
                milliseconds(row.time.after),
                change(row.time),
                change(row.exposed),
                change(row.wait),
                pair(speed(row.busbw.before), speed(row.busbw.after)),
                significant(row.time),
            )
            for row in shown
        ),
        full=tuple(row.group for row in shown),
    )


def _both(calls: Difference) -> str:
    return pair(*(NONE if n is None else count(n) for n in (calls.before, calls.after)))


def _work(
    heading: str, column: str, rows: Sequence[WorkDifference], top: int, note: str = _MEANS
) -> Table:
    both = [row for row in rows if row.time.before is not None and row.time.after is not None]
    shown = [row for row in both if _matters(row.time)][:top]
    return _table(
        heading,
        f"{note}; by the size of the change",
        (_word(column, cut=True), *_numbers("calls", "A", "B", "change", "", "sure")),
        tuple(
            (
                _name(row),
                _both(row.calls),
                milliseconds(row.time.before),
                milliseconds(row.time.after),
                change(row.time),
                relative(row.time),
                significant(row.time),
            )
            for row in shown
        ),
        full=tuple(_full(row) for row in shown),
        more=len(both) - len(shown),
    )


def _one_sided(letter: str, column: str, rows: Sequence[WorkDifference], top: int) -> Table:
    mine, other = ("after", "before") if letter == "B" else ("before", "after")
    only = [row for row in rows if getattr(row.time, other) is None]
    return _table(
        f"{column.capitalize()}s that only {letter} has",
        _MEANS,
        (_word(column, cut=True), _word("family"), *_numbers("calls", "ms")),
        tuple(
            (
                _name(row),
                row.detail,
                count(getattr(row.calls, mine)),
                milliseconds(getattr(row.time, mine)),
            )
            for row in only[:top]
        ),
        full=tuple(_full(row) for row in only[:top]),
        more=max(0, len(only) - top),
    )


def _name(row: WorkDifference) -> str:
    if row.detail.startswith("["):
        return f"{row.name} {shape_in_words(row.detail)}"
    # Only a kernel has a return type that may be left out; a phase is `forward micro-batch`.
    return short_name(row.name) if row.detail else row.name


def _full(row: WorkDifference) -> str:
    if row.names:
        return f"taken for one: {'; '.join(row.names)}"
    return f"{row.name} {row.detail}".strip()
