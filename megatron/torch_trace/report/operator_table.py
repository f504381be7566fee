# SPDX-License-Identifier: Apache-2.0
"""Operators as the text that `torch.profiler`'s `key_averages().table()` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from megatron.torch_trace.analysis.host.key_averages import KeyAverage
from megatron.torch_trace.wording import visible

ORDERS: dict[str, Callable[[KeyAverage], int]] = {
    "self-gpu": lambda row: row.self_gpu_ns,
    "gpu": lambda row: row.gpu_ns,
    "self-cpu": lambda row: row.self_cpu_ns,
    "cpu": lambda row: row.cpu_ns,
    "calls": lambda row: row.calls,
}
"""What a table may be sorted by, the largest first."""

_LONGEST_NAME = 55
_WIDTH = 12
_GAP = "  "
_UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"))
_SIZES = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB"))


def operator_table(rows: Sequence[KeyAverage], *, limit: int = 0, order: str | None = None) -> str:
    """The table, without columns in which nothing stands.

    Args:
        rows: sorted.
        limit: at most so many rows; 0 for all. Shares and sums are of all.
        order: of `ORDERS`; as they are if None.
    """
    if order is not None:
        rows = sorted(rows, key=ORDERS[order], reverse=True)
    shown = rows[:limit] if limit else rows
    longest = max((len(visible(row.name)) for row in rows), default=0)
    width = min(longest + 4, _LONGEST_NAME)
    columns = _columns(rows)
    widths = [width, *(_WIDTH for _ in columns)]
    line = _GAP.join("-" * one for one in widths)
    heads = ["Name", *(head for head, _ in columns)]
    cells = ((_name(row), *(of(row) for _, of in columns)) for row in shown)
    lines = [line, _line(heads, widths), line, *(_line(row, widths) for row in cells), line]
    return "\n".join([*lines, *_sums(rows), ""])


def _columns(rows: Sequence[KeyAverage]) -> list[tuple[str, Callable[[KeyAverage], str]]]:
    cpu = sum(row.self_cpu_ns for row in rows)
    gpu = _gpu_total(rows)
    columns: list[tuple[str, Callable[[KeyAverage], str]]] = [
        ("Self CPU %", lambda row: _share(row.self_cpu_ns, cpu)),
        ("Self CPU", lambda row: _time(row.self_cpu_ns)),
        ("CPU total %", lambda row: _share(row.cpu_ns, cpu)),
        ("CPU total", lambda row: _time(row.cpu_ns)),
        ("CPU time avg", lambda row: _time(row.cpu_ns / row.calls)),
    ]
    if any(row.self_gpu_ns for row in rows):
        columns += [
            ("Self CUDA", lambda row: _time(row.self_gpu_ns)),
            ("Self CUDA %", lambda row: _share(row.self_gpu_ns, gpu)),
            ("CUDA total", lambda row: _time(row.gpu_ns)),
            ("CUDA time avg", lambda row: _time(row.gpu_ns / row.calls)),
        ]
    if any(row.cpu_bytes or row.self_cpu_bytes for row in rows):
        columns += [
            ("CPU Mem", lambda row: _size(row.cpu_bytes)),
            ("Self CPU Mem", lambda row: _size(row.self_cpu_bytes)),
        ]
    if any(row.gpu_bytes or row.self_gpu_bytes for row in rows):
        columns += [
            ("CUDA Mem", lambda row: _size(row.gpu_bytes)),
            ("Self CUDA Mem", lambda row: _size(row.self_gpu_bytes)),
        ]
    return [*columns, ("# of Calls", lambda row: str(row.calls))]


def _sums(rows: Sequence[KeyAverage]) -> Iterator[str]:
    yield f"Self CPU time total: {_time(sum(row.self_cpu_ns for row in rows))}"
    if any(row.self_gpu_ns for row in rows):
        yield f"Self CUDA time total: {_time(_gpu_total(rows))}"


def _gpu_total(rows: Sequence[KeyAverage]) -> int:
    return sum(row.self_gpu_ns for row in rows if row.on_gpu and not row.annotation)


def _name(row: KeyAverage) -> str:
    name = visible(row.name)
    most = _LONGEST_NAME - 3
    return name if len(name) < most else f"{name[:most]}..."


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return _GAP.join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _time(ns: float) -> str:
    for unit, word in _UNITS[:-1]:
        if ns >= unit:
            return f"{ns / unit:.3f}{word}"
    return f"{ns / 1000:.3f}us"


def _share(part: int, whole: int) -> str:
    return f"{part * 100 / whole:.2f}%" if whole else "NaN"


def _size(number: int) -> str:
    for unit, word in _SIZES:
        if abs(number) >= unit:
            return f"{number / unit:.2f} {word}"
    return f"{number} B"
