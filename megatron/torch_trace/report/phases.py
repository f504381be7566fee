# SPDX-License-Identifier: Apache-2.0
"""The tables of phases and micro-batches, of the first and the last pipeline stage."""

from __future__ import annotations

from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult
from megatron.torch_trace.analysis.schedule.microbatches import MicrobatchRow
from megatron.torch_trace.analysis.schedule.phases import PhaseRow
from megatron.torch_trace.report.stages import first_and_last, label
from megatron.torch_trace.report.table import paragraph, table
from megatron.torch_trace.wording import NONE, count, milliseconds

_PASSES = ("forward", "backward")
_NO_PLACE = ""
_WIDE = 96
_SAME = ("forward-compute", "backward-compute")
"""Timers around a micro-batch and nothing else: no line for them where micro-batches have one."""


def tables(analysis: Analysis, width: int, top: int) -> list[str]:
    """Phases, and micro-batches by their place in 1F1B; nothing without spans of phases."""
    ranks = first_and_last(analysis, lambda rank: rank.phases)
    if not ranks:
        return []
    gpu = not analysis.is_of_the_cpu
    return _phases(ranks, width, 2 * top, gpu=gpu) + _microbatches(ranks, width, gpu=gpu)


def _phases(ranks: tuple[RankResult, ...], width: int, most: int, *, gpu: bool) -> list[str]:
    of = [{row.phase: row for row in rank.phases} for rank in ranks]
    longest: dict[str, int] = {}
    for rows in of:
        for name, row in rows.items():
            longest[name] = max(longest.get(name, 0), row.time_ns)
    if any(rank.microbatches for rank in ranks):
        longest = {name: time for name, time in longest.items() if name not in _SAME}
    names = sorted(longest, key=lambda name: -longest[name])[:most]
    columns = ["| calls", "CPU", "GPU work", "exposed"]
    if not gpu:
        columns = columns[:2]
    elif len(ranks) > 1 and width < _WIDE:
        columns.pop()
    lines = []
    for name in names:
        line = [name]
        for rows in of:
            line += _cells(rows.get(name))[: len(columns)]
        lines.append(line)
    where = " | ".join(label(rank, ranks) for rank in ranks)
    return [
        f"PHASES (ms; they nest): {where}",
        *table(["<~phase", *columns * len(ranks)], lines, width),
    ]


def _cells(row: PhaseRow | None) -> list[str]:
    if row is None:
        return [NONE] * 4
    times = (row.time_ns, row.gpu_ns, row.exposed_communication_ns)
    return [count(row.calls), *(milliseconds(time) if time else NONE for time in times)]


def _microbatches(ranks: tuple[RankResult, ...], width: int, *, gpu: bool) -> list[str]:
    lines = []
    for rank in ranks:
        for direction in _PASSES:
            groups: dict[str, list[MicrobatchRow]] = {}
            for row in rank.microbatches:
                if getattr(row, f"{direction}_ns") is not None:
                    place = getattr(row, f"{direction}_place") or _NO_PLACE
                    groups.setdefault(place, []).append(row)
            for place, rows in groups.items():
                lines.append([rank.number, direction, place, *_group(rows, direction)])
    if not lines:
        return []
    columns = ("rank", "<pass", "<in 1F1B", "count", "CPU", "longest", "(is)", "GPU work", "most",
               "(is)")  # fmt: skip
    most = " and the most on the GPU" if gpu else ""
    found = ["", f"MICRO-BATCHES (ms, means; the longest on the CPU{most})"]
    kept = len(columns) if gpu else columns.index("GPU work")
    found += table(columns[:kept], [line[:kept] for line in lines], width)
    for rank in ranks:
        parts = [f"{row.place} {milliseconds(row.bubble_ns)}" for row in rank.bubble]
        if parts:
            text = f"{label(rank, ranks)}: bubble, ms: {', '.join(parts)}"
            found += paragraph(text, width, "  ", "    ")
    return found


def _group(rows: list[MicrobatchRow], direction: str) -> list[str]:
    cells = [count(len(rows))]
    for measure in (f"{direction}_ns", f"{direction}_gpu_ns"):
        values = [getattr(row, measure) for row in rows]
        largest = max(values)
        cells += [
            milliseconds(sum(values) / len(values)),
            milliseconds(largest),
            _name(rows[values.index(largest)]),
        ]
    return cells


def _name(row: MicrobatchRow) -> str:
    if row.number is None:
        return NONE
    return f"#{row.number}" if row.chunk is None else f"#{row.number}.{row.chunk}"
