# SPDX-License-Identifier: Apache-2.0
"""What one recorded step runs, in the order of time: kernels, or operators without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from megatron.torch_trace.columns.block_times import block_times
from megatron.torch_trace.format.categories import GPU_WORK, category
from megatron.torch_trace.format.step_names import marks_a_step
from megatron.torch_trace.reader import Trace
from megatron.torch_trace.reader.event import PlainEvent

_OPERATOR = "cpu_op"


@dataclass(frozen=True, slots=True)
class Piece:
    """One kernel or operator: ns after the begin of the first one."""

    name: str
    start_ns: int
    duration_ns: int


@dataclass(frozen=True, slots=True)
class Waterfall:
    """The last recorded step.

    Args:
        gpu: whether the pieces are GPU work; else operators that no other encloses.
        pieces: in the order of their begins.
    """

    gpu: bool
    pieces: tuple[Piece, ...]

    @property
    def length_ns(self) -> int:
        """From the first begin to the last end."""
        return max((one.start_ns + one.duration_ns for one in self.pieces), default=0)

    @property
    def busy_ns(self) -> int:
        """In which at least one piece runs."""
        found, end = 0, 0
        for one in self.pieces:
            last = one.start_ns + one.duration_ns
            found += max(0, last - max(end, one.start_ns))
            end = max(end, last)
        return found


def waterfall_of(trace: Path, steps: int) -> Waterfall:
    """The last step of a trace of so many steps, each of which runs the same."""
    work: list[tuple[int, int, str]] = []
    operators: list[tuple[int, int, str]] = []
    marks: list[tuple[int, int]] = []
    for block in Trace(trace).blocks(PlainEvent):
        starts, durations = block_times(block)
        for event, start, duration in zip(block.events, starts, durations, strict=True):
            if event.ph != "X":
                continue
            kind = category(event.cat)
            row = (int(start), int(duration), event.name)
            if kind in GPU_WORK:
                work.append(row)
            elif kind == _OPERATOR:
                operators.append(row)
            elif marks_a_step(event.name, event.cat) is not None:
                marks.append((int(start), int(start + duration)))
    if work:
        return Waterfall(True, _pieces(_last_part(sorted(work), steps)))
    begin, end = max(marks, default=(0, 0))
    inside = [one for one in sorted(operators) if begin <= one[0] < end]
    return Waterfall(False, _pieces(_outermost(inside)))


def _last_part(rows: Sequence[tuple[int, int, str]], steps: int) -> Sequence[tuple[int, int, str]]:
    """GPU work runs after the step that launched it: the last of as many equal parts."""
    return rows[-(len(rows) // steps) :] if steps and len(rows) % steps == 0 else rows


def _outermost(rows: Sequence[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    kept: list[tuple[int, int, str]] = []
    end = -1
    for row in rows:
        if row[0] >= end:
            kept.append(row)
            end = row[0] + row[1]
    return kept


def _pieces(rows: Sequence[tuple[int, int, str]]) -> tuple[Piece, ...]:
    first = rows[0][0] if rows else 0
    return tuple(Piece(name, start - first, duration) for start, duration, name in rows)
