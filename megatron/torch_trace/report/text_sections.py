# SPDX-License-Identifier: Apache-2.0
"""The tables of the report: one function, one part; no part for what is not there."""

from __future__ import annotations

from statistics import mean

from megatron.torch_trace.analysis.results.analysis import Analysis, RankResult
from megatron.torch_trace.analysis.schedule.pipeline import PipelineStep
from megatron.torch_trace.analysis.timeline.breakdown import Breakdown
from megatron.torch_trace.format.breakdown_parts import BREAKDOWN_PARTS
from megatron.torch_trace.report.table import paragraph, table
from megatron.torch_trace.wording import (
    NONE,
    UNKNOWN,
    duration,
    milliseconds,
    percent,
    ranks,
)

_MOST_RANKS = 16
_MOST_LINES = 32
_FEW_RANKS = 4
_WIDE = 96


def breakdown(analysis: Analysis, width: int) -> list[str]:
    """By rank, and by step where there are several."""
    if analysis.is_of_the_cpu:
        return []
    several = len(analysis.ranks) <= _FEW_RANKS and any(len(r.steps) > 1 for r in analysis.ranks)
    # A dimension in which all ranks are at 0 tells nothing.
    used = {k for rank in analysis.ranks for k, v in rank.coordinates.items() if v}
    rows = []
    for rank in _shown(analysis):
        where = " ".join(f"{k}{v}" for k, v in rank.coordinates.items() if k in used)
        rows.append([rank.number, where, *_parts(rank.breakdown, rank.window_ns)])
        if several:
            rows += [
                ["", f"step {s.step}", *_parts(s.breakdown, s.end_ns - s.start_ns)]
                for s in rank.steps
            ]
    lines = ["WHERE THE TIME WENT (ms)"]
    lines += table(
        ("rank", "<at", "window", "compute", "exposed comm", "exposed copies", "idle", "busy"),
        rows,
        width,
    )
    return lines + _not_shown(analysis)


def _parts(parts: Breakdown | None, length: int) -> list[str]:
    if parts is None:
        return [milliseconds(length), *([UNKNOWN] * 5)]
    busy = 1 - parts.idle / length if length else 0.0
    return [
        milliseconds(length),
        *(milliseconds(getattr(parts, name)) for name in BREAKDOWN_PARTS),
        percent(busy),
    ]


def _shown(analysis: Analysis) -> list[RankResult]:
    return [rank for rank in analysis.ranks if rank.rank in analysis.summary.extremes]


def _not_shown(analysis: Analysis) -> list[str]:
    more = len(analysis.ranks) - len(analysis.summary.extremes)
    if not more:
        return []
    return [f"  The least and the most idle; {more:,} ranks more: --rank R or --json shows them."]


def pipeline(analysis: Analysis, width: int) -> list[str]:
    """By stage; of many ranks the means of each stage. Nothing without pipeline communication."""
    entries = [(rank, one) for rank in analysis.ranks for one in rank.pipeline]
    if not entries:
        return []
    groups: dict[tuple[int, int, int], list[tuple[RankResult, PipelineStep]]] = {}
    for rank, one in entries:
        stage = -1 if one.stage is None else one.stage
        of = rank.rank if len(entries) <= _MOST_LINES else -1
        groups.setdefault((stage, of, one.step), []).append((rank, one))
    rows = [_stage(groups[key]) for key in sorted(groups)]
    lines = [
        "PIPELINE (ms, first to last micro-batch; bubble = exposed send/recv + idle)",
        *table(
            (
                "stage",
                "ranks" if len(entries) > _MOST_LINES else "rank",
                "step",
                "micro-batches",
                "length",
                "compute",
                "send/recv",
                "idle",
                "bubble",
                "1F1B ideal",
            ),
            rows[:_MOST_LINES],
            width,
        ),
    ]
    more = len(rows) - _MOST_LINES
    return [*lines, f"  {more:,} lines more: --json has them."] if more > 0 else lines


def _stage(entries: list[tuple[RankResult, PipelineStep]]) -> list[str]:
    """A line of the pipeline: one stage in one step, on one rank or the mean of several."""
    rank, first = entries[0]
    steps = [one for _, one in entries]
    counts = sorted({one.microbatches for one in steps if one.microbatches is not None})
    known = [one for rank, one in entries if not rank.unknown]
    return [
        UNKNOWN if first.stage is None else f"{first.stage} of {first.stages}",
        rank.number if len(entries) == 1 else ranks(tuple(r.rank for r, _ in entries), most=2),
        str(first.step),
        _passes(counts, first.chunks),
        milliseconds(mean(one.end_ns - one.start_ns for one in steps)),
        *(
            milliseconds(mean(getattr(one, part) for one in known)) if known else UNKNOWN
            for part in ("compute_ns", "exposed_pipeline_ns", "idle_ns")
        ),
        percent(mean(one.bubble_share for one in known)) if known else UNKNOWN,
        percent(first.ideal_share),
    ]


def _passes(counts: list[int], chunks: int | None) -> str:
    """`8`, `8-16` where ranks differ, `8 x 2` of two virtual stages."""
    text = "-".join(str(one) for one in dict.fromkeys((*counts[:1], *counts[-1:]))) or UNKNOWN
    return f"{text} x {chunks}" if counts and chunks and chunks > 1 else text


def host(analysis: Analysis, width: int) -> list[str]:
    """Launches, causes of idle time, the loop's thread, synchronisations."""
    if analysis.is_of_the_cpu:
        return _python(analysis, width)
    rows = [_host_row(rank) for rank in _shown(analysis)]
    lines = ["CPU SIDE (ms): launches | why the GPU was idle | what the loop's thread did"]
    lines += table(
        (
            "rank",
            "launches",
            "delay us",
            "queue",
            "| CPU",
            "data",
            "sync",
            "GPU",
            "| operators",
            "waits",
            "Python",
        ),
        rows,
        width,
    )
    lines += _not_shown(analysis)
    syncs = sorted(
        ((row, rank) for rank in analysis.ranks for row in rank.host.syncs),
        key=lambda item: -item[0].time_ns,
    )
    lines += _python(analysis, width)
    for row, rank in syncs[:3]:
        lines += paragraph(
            f"{rank.name}: {row.call} by {row.caller}: {row.calls:,} times, "
            f"{duration(row.time_ns)}, longest {duration(row.max_ns)}",
            width,
            "  ",
            "    ",
        )
    return lines


def _python(analysis: Analysis, width: int) -> list[str]:
    """What of the loop's Python takes longest, of the first rank with stacks."""
    rank = next((rank for rank in analysis.ranks if rank.host.python), None)
    if rank is None:
        return []
    longest = [
        f"{row.function.rsplit('/', 1)[-1]} {milliseconds(row.self_ns)}"
        for row in rank.host.python[:4]
    ]
    first = "" if analysis.is_of_the_cpu else "  "
    return paragraph(
        f"{rank.name}: Python's own time, ms: {'; '.join(longest)}", width, first, "    "
    )


def _host_row(rank: RankResult) -> list[str]:
    launches, idle, loop = rank.launches, rank.host.idle, rank.host.loop_thread
    delay = launches.delay_median_ns
    causes = (idle.cpu_ns, idle.data_ns, idle.sync_ns, idle.gpu_ns)
    # No loop trains without operators: the trace has none, so nobody knows what is Python.
    recorded = loop is not None and loop.operators_ns > 0
    return [
        rank.number,
        f"{launches.launches:,}",
        NONE if delay is None else f"{delay / 1e3:,.0f}",
        NONE if launches.depth_mean is None else f"{launches.depth_mean:.1f}",
        *(UNKNOWN if rank.unknown else milliseconds(cause) for cause in causes),
        *(
            (NONE, NONE, NONE)
            if loop is None
            else (
                milliseconds(loop.operators_ns) if recorded else NONE,
                milliseconds(loop.waiting_ns),
                milliseconds(loop.other_ns - loop.backward_ns) if recorded else NONE,
            )
        ),
    ]
