# SPDX-License-Identifier: Apache-2.0
"""The answer's tables, for a terminal and for a page."""

from __future__ import annotations

from megatron.torch_profile.component.results import Answer, Result
from megatron.torch_trace.report.tables import Cell, Column, Medium, Row, Table, number, share, text
from megatron.torch_trace.wording import NONE, UNKNOWN, duration, microseconds, percent, size
from megatron.torch_trace.wording import number as shown

_COLUMNS = (
    Column("Variant", number=False, brief="variant", cut=True),
    Column("Median us", brief="median us", hint="half of the steps take less"),
    Column("p10 us", brief="p10", spare=True),
    Column("p90 us", brief="p90", spare=True),
    Column("Spread", brief="spread", hint="from p10 to p90, as a share of the median"),
    Column("Ratio", brief="ratio", hint="median divided by that of the baseline"),
    Column(
        "Sure",
        number=False,
        brief="sure",
        hint="whether a difference is larger than noise explains, at 5 %",
    ),
    Column("GPU us", brief="GPU us", hint="how long the GPU works in a step"),
    Column("Peak memory", brief="memory", hint="most in use of the GPU's memory for this variant"),
    Column("Kernels", brief="kernels", hint="kernels, copies and memsets of one step"),
    Column("TFLOP/s", brief="TFLOP/s", hint="of matrix products, convolutions and attention"),
    Column("GB/s", brief="GB/s", hint="of the bytes that a step must read and write at least"),
    Column("Of the roof", brief="of roof", hint="the time at best divided by the median"),
)
_ALWAYS = 5
"""Columns that are there even if there is nothing in them."""


def variants(answer: Answer) -> Table:
    """One row a case."""
    measured = [one for one in answer.results if not one.failure]
    table = Table(
        name="variants",
        caption="Variants",
        columns=_COLUMNS,
        rows=tuple(_row(answer, one) for one in measured),
        brief="VARIANTS (one step)",
        each="variant",
        limit=200,
    )
    return _without_unknown(table, _ALWAYS)


def _without_unknown(table: Table, first: int) -> Table:
    """The table without columns from `first` on in which nothing is known."""
    empty = [
        n
        for n in range(first, len(table.columns))
        if all(row.cells[n].text in (NONE, UNKNOWN) for row in table.rows)
    ]
    return table.without(empty) if empty else table


def _row(answer: Answer, one: Result) -> Row:
    summary, work = one.summary, one.work
    assert summary is not None
    seconds = summary.median / 1e9
    flops = work.flops / seconds / 1e12 if work and work.flops and seconds else None
    moved = work.bytes / seconds / 1e9 if work and work.bytes and seconds else None
    ratio = one.ratio.value if one.ratio else None
    return Row(
        (
            text(one.case.name),
            *(_us(ns) for ns in (summary.median, summary.p10, summary.p90)),
            number(summary.spread, percent(summary.spread)),
            number(ratio, "" if ratio is None else f"{ratio:.2f}"),
            text({True: "yes", False: "no", None: NONE}[answer.sure(one)]),
            Cell(NONE) if one.gpu_ns is None else _us(one.gpu_ns),
            number(one.peak_bytes, size(one.peak_bytes)),
            number(one.kernels, str(one.kernels)),
            number(flops, "" if flops is None else shown(flops)),
            number(moved, "" if moved is None else shown(moved)),
            Cell(NONE) if one.roof_share is None else share(one.roof_share, "compute"),
        )
    )


def _us(ns: float) -> Cell:
    return Cell(microseconds(ns), sort=ns)


def ranks(answer: Answer) -> Table:
    """One row a case and rank, where there are several."""
    rows = tuple(
        Row(
            (
                text(one.case.name),
                Cell(str(rank.rank), sort=rank.rank),
                *(_us(ns) for ns in (rank.summary.median, rank.summary.p10, rank.summary.p90)),
                number(rank.peak_bytes, size(rank.peak_bytes)),
            )
        )
        for one in answer.results
        for rank in one.ranks
        if answer.world_size > 1
    )
    names = ("Median us", "p10 us", "p90 us", "Peak memory")
    columns = (
        Column("Variant", number=False, brief="variant", cut=True),
        Column("Rank", brief="rank"),
        *(Column(name, brief=name.lower()) for name in names),
    )
    table = Table("by-rank", "Ranks", columns, rows, brief="RANKS", each="rank", most=16)
    return _without_unknown(table, 2)


def roofline(answer: Answer) -> Table:
    """Both ceilings and the time at best of each case."""
    rows = []
    for one in answer.results:
        if one.roof_share is None or one.ceilings is None:
            continue
        assert one.work is not None
        assert one.summary is not None
        least = one.ceilings.least_ns(one.work)
        intensity = one.work.flops / one.work.bytes if one.work.bytes else 0.0
        rows.append(
            Row(
                (
                    text(one.case.name),
                    number(one.work.flops or None, f"{shown(one.work.flops / 1e9)}"),
                    number(one.work.bytes, size(one.work.bytes)),
                    number(intensity or None, shown(intensity)),
                    text(one.ceilings.bound_by(one.work)),
                    Cell(duration(least), sort=least),
                    Cell(duration(one.summary.median), sort=one.summary.median),
                    share(one.roof_share, "compute"),
                )
            )
        )
    columns = (
        Column("Variant", number=False),
        Column("GFLOP"),
        Column("Bytes", hint="that a step must read and write at least"),
        Column("FLOP a byte"),
        Column("Bound by", number=False),
        Column("At best"),
        Column("Median"),
        Column("Of the roof"),
    )
    return Table(
        "roofline-table", "Roofline", columns, tuple(rows), media=Medium.WRITTEN, limit=200
    )
