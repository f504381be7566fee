# SPDX-License-Identifier: Apache-2.0
"""What a step of each variant runs, as tables with a bar for the time."""

from __future__ import annotations

from megatron.torch_profile.component.results import Answer, Result
from megatron.torch_profile.component.waterfall import Piece
from megatron.torch_trace.analysis.timeline.kernel_names import short_name
from megatron.torch_trace.report.tables import Cell, Column, Medium, Row, Table
from megatron.torch_trace.wording import counted, duration, microseconds

_MOST = 400
"""Kernels of a step that are drawn."""


def waterfalls(answer: Answer) -> list[Table]:
    """A table for each variant that has a trace, all to one scale."""
    found = [one for one in answer.results if one.waterfall and one.waterfall.pieces]
    longest = max((one.waterfall.length_ns for one in found if one.waterfall), default=0)
    return [_table(one, number, longest or 1) for number, one in enumerate(found)]


def _table(one: Result, position: int, longest: int) -> Table:
    assert one.waterfall is not None
    pieces = one.waterfall.pieces
    each = "kernel" if one.waterfall.gpu else "operator"
    columns = (
        Column(each.capitalize(), number=False),
        Column("Begins us", hint="after the first one of the step"),
        Column("Takes us"),
        Column("In the step", number=False),
    )
    left = len(pieces) - _MOST
    busy = sum(piece.duration_ns for piece in pieces)
    return Table(
        name=f"waterfall-{position}",
        caption=one.case.name,
        columns=columns,
        rows=tuple(_row(piece, longest) for piece in pieces[:_MOST]),
        rest=f"{counted(left, f'more {each}')} of the step: the trace has them."
        if left > 0
        else "",
        note=(
            f"{counted(len(pieces), each)} in {duration(one.waterfall.length_ns)}, at work "
            f"{duration(busy)}, as recorded in {one.window}; all variants are drawn to one scale."
        ),
        each=each,
        limit=40,
        media=Medium.WRITTEN,
    )


def _row(piece: Piece, longest: int) -> Row:
    short = short_name(piece.name)
    before, length = piece.start_ns / longest, piece.duration_ns / longest
    told = f"{duration(piece.duration_ns)} after {duration(piece.start_ns)}"
    return Row(
        (
            Cell(short, full=piece.name if short != piece.name else None),
            Cell(microseconds(piece.start_ns), sort=piece.start_ns),
            Cell(microseconds(piece.duration_ns), sort=piece.duration_ns),
            Cell("", full=told, bar=(("before", before), ("compute", max(length, 0.002)))),
        )
    )
