# SPDX-License-Identifier: Apache-2.0
"""An answer as a table, as CSV or as JSON; numbers in full, so that they can be used."""

from __future__ import annotations

import csv
import io
import json
import math
from decimal import Decimal
from typing import Any

import polars as pl

from megatron.torch_trace.query.answer import Answer
from megatron.torch_trace.wording import visible

SCHEMA = 1
_CUT = "…"


def render(answer: Answer, form: str, width: int | None) -> tuple[str, int]:
    """The text, and how many texts in it are cut.

    Args:
        answer: what to write.
        form: `table`, `csv` or `json`.
        width: characters of a text; None for all.
    """
    rows = [[_plain(value) for value in row] for row in answer.frame.rows()]
    if form == "table":
        rows = [[visible(v) if isinstance(v, str) else v for v in row] for row in rows]
    shown = [[_short(value, width) for value in row] for row in rows]
    cut = sum(a != b for before, after in zip(rows, shown, strict=True)
              for a, b in zip(before, after, strict=True))  # fmt: skip
    if form == "json":
        return _json(answer, shown), cut
    return (_csv if form == "csv" else _table)(answer.frame, shown), cut


def _json(answer: Answer, rows: list[list[Any]]) -> str:
    document = {
        "schema": SCHEMA,
        "columns": answer.frame.columns,
        "rows": rows,
        "left_out": answer.left_out,
    }
    return json.dumps(document) + "\n"


def _csv(frame: pl.DataFrame, rows: list[list[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(frame.columns)
    writer.writerows(rows)
    return text.getvalue()


def _table(frame: pl.DataFrame, rows: list[list[Any]]) -> str:
    cells = [list(map(visible, frame.columns)), *([_cell(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    numeric = [kind.is_numeric() for kind in frame.dtypes]
    lines = [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in cells
    ]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)


def _plain(value: Any) -> Any:
    """What JSON can hold; what is no number there is none."""
    if isinstance(value, Decimal):
        # polars' word for 0.5 in a query.
        return float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return str(value)


def _short(value: Any, width: int | None) -> Any:
    """Without the middle of a text: names differ at both ends."""
    if width is None or not isinstance(value, str) or len(value) <= width:
        return value
    behind = (width - 1) // 2
    return f"{value[: width - 1 - behind]}{_CUT}{value[len(value) - behind :]}"
