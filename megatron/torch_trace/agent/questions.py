# SPDX-License-Identifier: Apache-2.0
"""SQL for an agent: the tables are made once, and each query has a bound in time, too."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from megatron.torch_trace.agent.pages import answer
from megatron.torch_trace.parquet.schemas import SCHEMAS
from megatron.torch_trace.query import answer as sql
from megatron.torch_trace.query import words
from megatron.torch_trace.query.columns import TABLES, unit
from megatron.torch_trace.query.rendering import render
from megatron.torch_trace.query.tables import exported, made

_MOST_ROWS = 200
_MOST_TEXT = 120
_SECONDS = 60
_MOST_BYTES = 1 << 30
"""Of the answer on disk."""


@dataclass
class Questions:
    """Questions to one window.

    Args:
        path: the traces.
        folder: for tables, of this server alone.
        seconds: after which a query is ended.
    """

    path: Path
    folder: Path
    seconds: float = _SECONDS
    _there: set[str] = field(default_factory=set)

    def tables(self) -> str:
        """Every table with its columns and their units."""
        return answer(
            {"times": "ns; start_ns counts from the base time of the rank's trace"},
            [
                {
                    "table": table,
                    "holds": meaning,
                    "columns": " ".join(
                        f"{name}({unit(name)})" if unit(name) not in ("", "ns") else name
                        for name in SCHEMAS[table]
                    ),
                }
                for table, meaning in TABLES.items()
            ],
        )

    def ask(self, query: str, page: int) -> str:
        """The answer to a query: `columns`, and `rows` in their order.

        Raises:
            UsageError: the query is wrong, or would do more than read.
            TorchTraceError: it was ended, since it took too long or too much.
        """
        asked = words.read(query)
        missing = {table for table in SCHEMAS if table in asked.tables} - self._there
        if missing:
            made(self.path, missing, self.folder)
            self._there |= missing
        tables = exported(self.folder, asked.tables)
        found = sql.ask(
            tables, asked, self.folder, _MOST_ROWS, seconds=self.seconds, disk=_MOST_BYTES
        )
        document = json.loads(render(found, "json", _MOST_TEXT)[0])
        facts = {"columns": document["columns"], "rows_left_out": document["left_out"] or None}
        return answer(facts, document["rows"], page)
