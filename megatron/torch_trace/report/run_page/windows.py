# SPDX-License-Identifier: Apache-2.0
"""The windows of a run, one row each, and what changed from one to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from megatron.torch_trace.analysis.compare.comparison import compare
from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.errors import TorchTraceError
from megatron.torch_trace.format.breakdown_parts import BREAKDOWN_HEADS, BREAKDOWN_PARTS
from megatron.torch_trace.report.comparison.answer import answer
from megatron.torch_trace.report.section import Section
from megatron.torch_trace.report.tables import Cell, Column, Row, Table, ms, number, text
from megatron.torch_trace.wording import UNKNOWN, percent
from megatron.torch_trace.wording import number as number_in_words

_UNKNOWN_WITHOUT = "How long an iteration takes without the profiler is unknown"


@dataclass(frozen=True, slots=True)
class Change:
    """What a window has that the one before it has not; sentences of `compare`."""

    before: str
    after: str
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Windows:
    """What is known of all windows.

    Args:
        rows: of the table.
        changes: from each window that could be analysed to the next.
        last: the analysis of the last one; None if none could be analysed.
        failures: windows that could not be analysed, and why.
    """

    rows: tuple[Row, ...]
    changes: tuple[Change, ...]
    last: Analysis | None
    failures: tuple[str, ...]


def read_windows(folders: Iterable[Path], analyse: Callable[[Path], Analysis]) -> Windows:
    """Every window, one after the other: no more than two analyses are in memory.

    Args:
        folders: of the windows, ascending.
        analyse: gives the analysis of one.
    """
    rows: list[Row] = []
    changes: list[Change] = []
    failures: list[str] = []
    last: tuple[str, Analysis] | None = None
    for folder in folders:
        try:
            analysis = analyse(folder)
        except TorchTraceError as error:
            failures.append(str(error))
            continue
        rows.append(_row(folder.name, analysis))
        if last is not None:
            changes.append(Change(last[0], folder.name, _changes(last[1], analysis)))
        last = folder.name, analysis
    return Windows(tuple(rows), tuple(changes), last and last[1], tuple(failures))


def table(windows: Windows) -> Section:
    """The windows as a section."""
    columns = (
        Column("window", number=False),
        Column("ranks"),
        Column("breakdown", number=False),
        Column("iteration ms"),
        Column("undisturbed ms", hint="without the profiler: the iterations next to the window"),
        Column("slowdown", hint="recorded divided by undisturbed iteration"),
        *map(Column, BREAKDOWN_HEADS.values()),
        Column("MFU"),
        Column("first finding", number=False),
    )
    columns, rows = _known(columns, windows.rows)
    found = Table("means", "Means over the ranks", columns, rows, limit=200)
    return Section(
        "windows", "Windows", tables=[found], rest="torch-trace report WINDOW shows one of them."
    )


def _known(
    columns: Sequence[Column], rows: Sequence[Row]
) -> tuple[tuple[Column, ...], tuple[Row, ...]]:
    """Without columns that say nothing of any window, as those of a GPU in traces without one."""
    kept = [
        at
        for at in range(len(columns))
        if not rows or any(row.cells[at] != Cell(UNKNOWN) for row in rows)
    ]
    chosen = tuple(replace(row, cells=tuple(row.cells[at] for at in kept)) for row in rows)
    return tuple(columns[at] for at in kept), chosen


def changes(windows: Windows) -> Section:
    """What changed, as a section."""
    if not windows.changes:
        return Section("changes", "What changed", "Only one window could be analysed.")
    return Section("changes", "What changed", data={"changes": windows.changes})


def _row(name: str, analysis: Analysis) -> Row:
    summary = analysis.summary
    shares = [getattr(summary.shares, part) for part in BREAKDOWN_PARTS] if summary.shares else None
    bar = Cell(UNKNOWN)
    if shares:
        heads = BREAKDOWN_HEADS.values()
        told = ", ".join(f"{head} {percent(one)}" for head, one in zip(heads, shares, strict=True))
        bar = Cell("", full=told, bar=tuple(zip(BREAKDOWN_PARTS, shares, strict=True)))
    first = next((one for one in analysis.findings if one.severity != "info"), None)
    slowdown = summary.slowdown
    return Row(
        (
            text(name),
            number(len(analysis.ranks), f"{len(analysis.ranks):,}"),
            bar,
            ms(summary.iteration_ns) if summary.iteration_ns else Cell(UNKNOWN),
            ms(summary.undisturbed_iteration_ns)
            if summary.undisturbed_iteration_ns
            else Cell(UNKNOWN),
            Cell(UNKNOWN if slowdown is None else number_in_words(slowdown), sort=slowdown),
            *(Cell(percent(one), sort=one) for one in shares or (None,) * len(BREAKDOWN_PARTS)),
            Cell(percent(analysis.mfu.value), sort=analysis.mfu.value),
            text(first.name if first else "none", first.title if first else None),
        )
    )


def _changes(before: Analysis, after: Analysis) -> tuple[str, ...]:
    """The answer of `compare`; A is the window before."""
    said = answer(compare(before, after))
    return tuple(one for one in said if not one.startswith(_UNKNOWN_WITHOUT))
