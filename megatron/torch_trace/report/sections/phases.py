# SPDX-License-Identifier: Apache-2.0
"""Phases of the training loop, and micro-batches: by their place in 1F1B and one by one."""

from __future__ import annotations

from megatron.torch_trace.analysis.results.analysis import RankResult
from megatron.torch_trace.analysis.schedule.microbatches import (
    MicrobatchMeans,
    MicrobatchRow,
    by_place,
)
from megatron.torch_trace.analysis.schedule.phases import PhaseRow
from megatron.torch_trace.report.section import Section, Subject
from megatron.torch_trace.report.stages import first_and_last, label
from megatron.torch_trace.report.tables import (
    Cell,
    Column,
    Medium,
    Row,
    Table,
    amount,
    at,
    in_json,
    ms,
    number,
    rank_cell,
    share,
    some_ms,
    text,
)
from megatron.torch_trace.wording import NONE, milliseconds, ranks

_MOST = 300
_PHASE_ON_GPU, _PLACE_ON_GPU, _MICROBATCH_ON_GPU = (5, 6, 7), (7, 8), (7,)
_MODEL = 1
"""Column of both tables of micro-batches, which only a loop with several models fills."""
"""Columns that a recording without a GPU leaves out."""
_PASSES = ("forward", "backward")
_SAME = ("forward-compute", "backward-compute")
"""Timers around a micro-batch and nothing else: spare where micro-batches have lines."""

Ranks = tuple[RankResult, ...]


def section(subject: Subject) -> Section:
    """Of the first and the last stage."""
    analysis = subject.analysis
    shown = first_and_last(analysis, lambda rank: rank.phases)
    if not shown:
        missing = "The traces have no spans of phases (--torch-profile-spans phases)."
        return Section("phases", "Phases", missing)
    of = shown[0].name if len(shown) == 1 else f"ranks {ranks(tuple(r.rank for r in shown))}"
    tables = [_phases(shown, of, 2 * subject.top), _places(shown, of), _microbatches(shown, of)]
    if analysis.is_of_the_cpu:
        left_out = (_PHASE_ON_GPU, _PLACE_ON_GPU, _MICROBATCH_ON_GPU)
        tables = [one.without(which) for one, which in zip(tables, left_out, strict=True)]
    if not any(row.model for rank in shown for row in rank.microbatches):
        tables[1:] = [one.without((_MODEL,)) for one in tables[1:]]
    rest = ""
    if len(shown) < len(analysis.ranks):
        rest = (
            "These are the lowest ranks of the first and of the last stage; "
            "analyze --json has all ranks."
        )
    return Section("phases", "Phases", tables=tables, rest=rest)


def _phases(shown: Ranks, of: str, most: int) -> Table:
    columns = (
        Column("phase", number=False, cut=True),
        Column("rank", brief="rank" if len(shown) > 1 else None),
        Column("calls", sums="count"),
        Column(
            "CPU ms",
            brief="CPU",
            hint="time in its spans on the training loop's thread",
            sums="ms",
        ),
        Column("of window", brief=None),
        Column(
            "GPU work ms",
            brief="GPU work",
            hint="work that the phase launches; it may run later",
            sums="ms",
        ),
        Column("kernels", brief=None, sums="count"),
        Column("exposed comm ms", brief="exposed comm", hint="of the GPU work", sums="ms"),
    )
    longest: dict[str, int] = {}
    for rank in shown:
        for row in rank.phases:
            longest[row.phase] = max(longest.get(row.phase, 0), row.time_ns)
    rows = [(rank, row) for rank in shown for row in rank.phases]
    rows.sort(key=lambda entry: (-longest[entry[1].phase], entry[1].phase))
    spare = _SAME if any(rank.microbatches for rank in shown) else ()
    return Table(
        "loop",
        f"Phases of {of} (phases nest, so times do not add up)",
        columns,
        tuple(
            Row(_phase(rank, row), at(rank.rank, row.longest), spare=row.phase in spare)
            for rank, row in rows
        ),
        brief=f"PHASES (ms; they nest): {'; '.join(label(rank, shown) for rank in shown)}",
        most=most * len(shown),
        told="",
        limit=32,
    )


def _phase(rank: RankResult, row: PhaseRow) -> tuple[Cell, ...]:
    return (
        text(row.phase),
        rank_cell(rank),
        amount(row.calls),
        some_ms(row.time_ns),
        share(row.share),
        some_ms(row.gpu_ns),
        amount(row.kernels),
        some_ms(row.exposed_communication_ns),
    )


def _places(shown: Ranks, of: str) -> Table:
    columns = (
        Column("rank"),
        Column("model", number=False),
        Column("pass", number=False),
        Column("in 1F1B", number=False),
        Column("count"),
        Column("CPU ms", brief="CPU", hint="mean"),
        Column("longest on the CPU (micro-batch)", brief="longest (which)"),
        Column(
            "GPU work ms", brief="GPU work", hint="mean of the work that a micro-batch launches"
        ),
        Column("most GPU work (micro-batch)", brief="most (which)"),
    )
    rows = tuple(Row(_place(rank, one)) for rank in shown for one in by_place(rank.microbatches))
    caption = f"Micro-batches of {of} by place in 1F1B"
    gpu = any(row.gpu_ns for rank in shown for row in rank.phases)
    most = " and the one with most GPU work" if gpu else ""
    brief = f"MICRO-BATCHES (ms, means; the longest on the CPU{most})"
    return Table("microbatch-places", caption, columns, rows, brief=brief, limit=32)


def _place(rank: RankResult, one: MicrobatchMeans) -> tuple[Cell, ...]:
    return (
        rank_cell(rank),
        text(one.model or NONE),
        text(one.direction),
        text(one.place or NONE),
        amount(one.count),
        ms(one.cpu_ns),
        _which(one.longest, f"{one.direction}_ns"),
        ms(one.gpu_ns),
        _which(one.heaviest, f"{one.direction}_gpu_ns"),
    )


def _which(row: MicrobatchRow, measure: str) -> Cell:
    value = getattr(row, measure)
    return Cell(f"{milliseconds(value)} (#{_name(row)})", sort=value)


def _name(row: MicrobatchRow) -> str:
    name = NONE if row.number is None else str(row.number)
    return name if row.chunk is None else f"{name}.{row.chunk}"


def _microbatches(shown: Ranks, of: str) -> Table:
    rows = [
        _microbatch(rank, row, direction)
        for rank in shown
        for row in rank.microbatches
        for direction in _PASSES
        if getattr(row, f"{direction}_ns") is not None
    ]
    columns = (
        Column("micro-batch"),
        Column("model", number=False),
        Column("pass", number=False),
        Column("rank"),
        Column("step"),
        Column("in 1F1B", number=False),
        Column("CPU ms"),
        Column("GPU work ms", hint="sum of the work that it launches"),
    )
    more = len(rows) - _MOST
    if more > 0:
        rows = sorted(rows, key=lambda row: -(row.cells[6].sort or 0))[:_MOST]
    rest = f"These are the longest on the CPU; {in_json(more)}" if more > 0 else ""
    caption = f"Micro-batches of {of}, one by one"
    return Table(
        "microbatches", caption, columns, tuple(rows), rest, limit=16, media=Medium.WRITTEN
    )


def _microbatch(rank: RankResult, row: MicrobatchRow, direction: str) -> Row:
    cells = (
        Cell(_name(row), sort=row.number),
        text(row.model or NONE),
        text(direction),
        rank_cell(rank),
        number(row.step, str(row.step)),
        text(getattr(row, f"{direction}_place") or NONE),
        ms(getattr(row, f"{direction}_ns")),
        ms(getattr(row, f"{direction}_gpu_ns")),
    )
    return Row(cells, at(rank.rank, getattr(row, f"{direction}_on_gpu")))
