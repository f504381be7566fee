# SPDX-License-Identifier: Apache-2.0
"""What there is to ask for: every table, its columns, and what they are measured in."""

from __future__ import annotations

from dataclasses import dataclass

from megatron.torch_trace.parquet.schemas import SCHEMAS

TABLES = {
    "ranks": "where each rank is, and what aligns it in time",
    "steps": "the time of every step in four parts, which add up to it",
    "kernels": "work of the GPU",
    "collectives": "communication in the window, in the order of launch",
    "modules": "time and FLOPs of every module in the window",
    "spans": "modules, micro-batches and phases on the CPU, as they were entered",
    "launches": "calls of the CPU that put work on the GPU",
    "findings": "what analyze finds, the most severe first",
    "events": "every slice of the traces",
}

_UNITS = {
    "bytes": "bytes",
    "share": "of 1",
    "peak_share": "of 1",
    "tflops": "TFLOP/s",
    "flops": "FLOPs",
    "backward_flops": "FLOPs",
    "recompute_flops": "FLOPs",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; the unit is empty where it is no quantity."""

    table: str
    name: str
    type: str
    unit: str


def columns() -> list[Column]:
    """All of them, in the order of docs/export.md."""
    return [
        Column(table, name, _type(str(kind)), unit(name))
        for table in TABLES
        for name, kind in SCHEMAS[table].items()
    ]


def unit(name: str) -> str:
    """What a column of this name is measured in; empty for names and counts."""
    return "ns" if name.endswith("_ns") else _UNITS.get(name, "")


def _type(kind: str) -> str:
    return "text" if kind == "String" else "number" if kind.startswith("Float") else "integer"
