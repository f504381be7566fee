# SPDX-License-Identifier: Apache-2.0
"""SQL for an agent: the tables are made once, and each query runs in a process that can be ended.

A query may ask for more than there is memory, disk or time for, and polars cannot be interrupted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megatron.torch_trace.agent.pages import answer
from megatron.torch_trace.errors import TorchTraceError, UsageError
from megatron.torch_trace.parquet.schemas import SCHEMAS
from megatron.torch_trace.query import words
from megatron.torch_trace.query.columns import TABLES, unit
from megatron.torch_trace.query.tables import made
from megatron.torch_trace.system.memory import host_memory
from megatron.torch_trace.wording import duration

_MOST_ROWS = 200
_MOST_TEXT = 120
_SECONDS = 60
_MOST_BYTES = 1 << 30
"""Of the answer on disk."""
_LEAST_MEMORY = 4 << 30
_PACKAGE = str(Path(__file__).parents[2])
_PROGRAM = """
import resource, sys, types
resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))
resource.setrlimit(resource.RLIMIT_AS, ({memory}, {memory}))
# As in this process, whatever hides `megatron` on the path (megatron_torch_profile.py).
sys.modules["megatron"] = types.ModuleType("megatron")
sys.modules["megatron"].__path__ = [{package!r}]
from megatron.torch_trace.commands import main
main()
"""


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
        found = self._run(query)
        facts = {"columns": found["columns"], "rows_left_out": found["left_out"] or None}
        return answer(facts, found["rows"], page)

    def _run(self, query: str) -> dict[str, Any]:
        memory = max(_LEAST_MEMORY, host_memory().free // 2)
        program = _PROGRAM.format(size=_MOST_BYTES, memory=memory, package=_PACKAGE)
        bounds = ["--format", "json", "--rows", str(_MOST_ROWS), "--width", str(_MOST_TEXT)]
        try:
            done = subprocess.run(
                [sys.executable, "-c", program, "sql", *bounds, "--", str(self.folder), query],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self.seconds,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
                    "TMPDIR": str(self.folder),
                    # Each thread of polars reserves memory that counts.
                    "POLARS_MAX_THREADS": "2",
                },
            )
        except subprocess.TimeoutExpired:
            raise TorchTraceError(
                f"the query was ended after {duration(self.seconds * 1e9)}; ask for less: filter "
                "by rank and step, and join on a call or a step."
            ) from None
        if done.returncode == 2:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise UsageError(said[-1].removeprefix("torch-trace: "))
        if done.returncode:
            raise TorchTraceError(
                "the query was ended: it takes more memory or disk than it may; ask for less: "
                "filter by rank and step, and join on a call or a step."
            )
        document: dict[str, Any] = json.loads(done.stdout)
        return document
