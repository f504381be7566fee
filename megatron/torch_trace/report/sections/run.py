# SPDX-License-Identifier: Apache-2.0
"""What the run was, its GPUs over the whole run, and what was repaired or is unknown."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.analysis.results.run_record import Series
from megatron.torch_trace.analysis.results.shown_ranks import MOST, shown_ranks
from megatron.torch_trace.report import sentences
from megatron.torch_trace.report.section import Section, Subject
from megatron.torch_trace.report.tables import (
    Cell,
    Column,
    Row,
    Table,
    in_json,
    number,
    rank_cell,
    text,
)
from megatron.torch_trace.wording import counted, ranks
from megatron.torch_trace.wording import number as number_in_words

_WIDTH, _HEIGHT = 240, 36
_MOST_VALUE = 400
_SPREADS = ("/min", "/max", "/min_rank", "/max_rank", "/mean", "/slowest_rank", "/imbalance")
_UNITS = {
    "_pct": "%",
    "_w": "W",
    "_mhz": "MHz",
    "_c": "°C",
    "_gib": "GiB",
    "_mb_s": "MB/s",
    "_ms": "ms",
    "_per_s": "1/s",
    "-time": "s",
    "_per_gpu": "TFLOP/s",
}
_IDENTITY = ("run", "created", "user", "host", "world_size")


@dataclass(frozen=True, slots=True)
class Line:
    """One metric as a small chart over iterations."""

    name: str
    unit: str
    path: str
    last: str
    least: str
    most: str
    told: str


def telemetry(subject: Subject) -> Section:
    """Every metric of `metrics.jsonl` that is no spread of another one and not on this page."""
    record = subject.record
    title = "Metrics"
    series = [] if record is None else [s for s in record.metrics if _is_told(s)]
    if not series:
        return Section(
            "telemetry",
            title,
            "There is no metrics.jsonl beside the window's folder: --log-timers-to-wandb, "
            "--log-gpu-stats-interval and --torch-profile-monitor write one.",
        )
    groups: dict[str, list[Line]] = {}
    for one in series:
        if any(one.values):
            groups.setdefault(one.name.split("/")[0], []).append(_line(one))
    first = min(one.iterations[0] for one in series)
    last = max(one.iterations[-1] for one in series)
    data = {
        "groups": groups,
        "zeros": ", ".join(one.name for one in series if not any(one.values)),
        "width": _WIDTH,
        "height": _HEIGHT,
        "span": f"iterations {first:,} to {last:,}",
    }
    return Section("telemetry", title, data=data)


def _is_told(series: Series) -> bool:
    # What a single window said is this page itself; that of several is a course.
    said_here = series.name.startswith("profile/") and len(series.iterations) == 1
    # Slow ranks that were named are events; these numbers have no course.
    named = series.name.startswith("monitor/slow_") or series.name == "monitor/iteration"
    return not (said_here or named or series.name.endswith(_SPREADS))


def _line(series: Series) -> Line:
    least, most = min(series.values), max(series.values)
    height = most - least
    first, last = series.iterations[0], series.iterations[-1]
    points = []
    for iteration, value in zip(series.iterations, series.values, strict=True):
        x = _WIDTH * (iteration - first) / (last - first) if last > first else _WIDTH / 2
        y = 2 + (_HEIGHT - 4) * (1 - (value - least) / height) if height else _HEIGHT / 2
        points.append(f"{x:.1f} {y:.1f}")
    path = "M" + "L".join(points) + ("" if len(points) > 1 else "h.1")
    unit = next((unit for end, unit in _UNITS.items() if series.name.endswith(end)), "")
    told = f"{series.name}: {number_in_words(least)} to {number_in_words(most)} {unit}".strip()
    return Line(
        series.name.split("/", 1)[-1],
        unit,
        path,
        number_in_words(series.values[-1]),
        number_in_words(least),
        number_in_words(most),
        told,
    )


def section(subject: Subject, *, window: str = "") -> Section:
    """From run.json, or what the traces themselves tell.

    Args:
        window: name of the window that hosts and traces are of, on a page of several windows.
    """
    analysis = subject.analysis
    record = subject.record
    run: Mapping[str, Any] = record.run if record else {}
    facts: list[tuple[str, str]] = []
    if record:
        facts.append(("folder", record.folder))
    facts += [(name.replace("_", " "), _shown(run[name])) for name in _IDENTITY if run.get(name)]
    if isinstance(run.get("model_flops_per_iteration"), (int, float)):
        tflop = number_in_words(run["model_flops_per_iteration"] / 1e12)
        facts.append(("model TFLOP an iteration", tflop))
    layout = run.get("layout")
    if isinstance(layout, Mapping):
        facts.append(("layout", ", ".join(f"{k} {v}" for k, v in layout.items())))
    facts += _plan(run.get("plan"))
    of = f" of {window}" if window else ""
    facts += [(f"hosts{of}", hosts) for hosts in _hosts(analysis)]
    argv = run.get("argv") or next((list(r.argv) for r in analysis.ranks if r.argv), None)
    versions = run.get("versions")
    shown = shown_ranks(analysis)
    files = Table(
        "files",
        f"Traces{of}",
        (
            Column("rank"),
            Column("file", number=False),
            Column("host", number=False),
            Column("GPU", number=False),
        ),
        tuple(
            Row(
                (
                    rank_cell(rank),
                    text(rank.file),
                    text(rank.host_name or ""),
                    text(rank.device or "unknown"),
                )
            )
            for rank in shown
        ),
        rest=in_json(len(analysis.ranks) - len(shown), "rank"),
        limit=8,
    )
    command = [shlex.quote(str(one)) for one in argv] if isinstance(argv, (list, tuple)) else None
    return Section(
        "run",
        "The run",
        tables=[
            _pairs("versions", "Versions", versions, 20),
            _pairs("arguments", "Arguments", run.get("arguments"), 8),
            _pairs("environment", "Environment", run.get("environment"), 8),
            files,
        ],
        data={"facts": facts, "command": command, "has_record": bool(run)},
    )


def _plan(plan: object) -> list[tuple[str, str]]:
    if not isinstance(plan, Mapping):
        return []
    found = []
    recorded = plan.get("ranks")
    if isinstance(recorded, list) and all(isinstance(one, int) for one in recorded):
        found.append(("recorded ranks", ranks(tuple(recorded))))
    windows = plan.get("windows")
    if isinstance(windows, list):
        shown = [_window(one) for one in windows[:12] if isinstance(one, Mapping)]
        more = len(windows) - len(shown)
        found.append(
            ("planned windows", ", ".join(shown) + (f", and {more} more" if more > 0 else ""))
        )
    return found


def _window(window: Mapping[str, Any]) -> str:
    first, last = window.get("first"), window.get("last")
    return str(first) if first == last else f"{first}-{last}"


def _hosts(analysis: Analysis) -> list[str]:
    hosts: dict[str, list[int]] = {}
    for rank in analysis.ranks:
        if rank.host_name:
            hosts.setdefault(rank.host_name, []).append(rank.rank)
    shown = [
        f"{host} ({'rank' if len(own) == 1 else 'ranks'} {ranks(tuple(own))})"
        for host, own in list(hosts.items())[:16]
    ]
    more = len(hosts) - len(shown)
    if not shown:
        return []
    return [", ".join(shown) + (f", and {more} more" if more else "")]


def _pairs(name: str, caption: str, values: object, limit: int) -> Table | None:
    if not isinstance(values, Mapping) or not values:
        return None
    columns = (Column("name", number=False), Column("value", number=False))
    rows = tuple(Row((text(key), _pair(value))) for key, value in values.items())
    return Table(name, caption, columns, rows, limit=limit)


def _pair(value: object) -> Any:
    shown = _shown(value)
    short = shown if len(shown) <= _MOST_VALUE else shown[: _MOST_VALUE - 1] + "…"
    return text(short, shown)


def _shown(value: object) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return "none"
    return json.dumps(value)


def notes(subject: Subject) -> Section:
    """What was repaired, dropped, or is unknown."""
    analysis = subject.analysis
    record = subject.record
    found = sentences.notes(analysis)
    unknown = [rank for rank in analysis.ranks if rank.unknown and not rank.cpu]
    found += [
        f"{r.name[0].upper()}{r.name[1:]}: utilisation is unknown: {r.unknown}"
        for r in unknown[:MOST]
    ]
    if len(unknown) > MOST:
        more = counted(len(unknown) - MOST, "more rank")
        found.append(f"Utilisation of {more} is unknown: analyze --json says why.")
    if record:
        found += record.faults
    rows = tuple(
        Row((rank_cell(rank), text(kind.replace("_", " ")), *_repair(repair)))
        for rank in shown_ranks(analysis)
        for kind, repair in rank.repairs.items()
        if isinstance(repair, Mapping)
    )
    table = None
    if rows:
        columns = (
            Column("rank"),
            Column("what", number=False),
            Column("times"),
            Column("meaning", number=False),
            Column("at byte", number=False),
        )
        table = Table("repairs", "What the reader mended or lost", columns, rows, limit=16)
    if not found and table is None:
        return Section("notes", "Notes", "There is nothing to note.")
    return Section("notes", "Notes", tables=[table], data={"notes": found})


def _repair(repair: Mapping[str, Any]) -> tuple[Cell, Cell, Cell]:
    offsets = repair.get("offsets") or []
    return (
        number(repair.get("count"), f"{repair.get('count') or 0:,}"),
        text(repair.get("meaning", "")),
        text(", ".join(f"{offset:,}" for offset in offsets)),
    )
