# SPDX-License-Identifier: Apache-2.0
"""Blocks joined: codes of a block become codes of the file, columns grow where they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from megatron.torch_trace.columns.builder import BlockColumns
from megatron.torch_trace.columns.codes import Codes
from megatron.torch_trace.columns.growing_column import GrowingColumn
from megatron.torch_trace.columns.intervals import Ints

NONE = -1
"""Stands for "has none" in columns of ids and codes."""

NARROW: Mapping[str, Any] = {
    "name": np.int32,
    "track": np.int32,
    "category": np.int32,
    "shape": np.int32,
    "inputs": np.int32,
    "forward_thread": np.int32,
    "collective": np.int32,
    "annotation": np.bool_,
    "instant": np.int8,
    "kind": np.int8,
}
"""Codes and flags are small, and there are millions of them; all others have 64 bits."""


class JoinedColumns:
    """Tables over the whole file.

    Args:
        tables: table -> its columns.
        codes: the kinds of value that columns of their names hold codes of.
        nothing: what stands for "has none" in columns of 64 bits.

    Attributes:
        codes: kind of value -> its codes; a column of that name holds them.
        without_start: table -> events without a time.
        counts: what tables count.
    """

    def __init__(
        self, tables: Mapping[str, tuple[str, ...]], codes: tuple[str, ...], *, nothing: int = NONE
    ) -> None:
        self._columns = {
            table: {
                name: GrowingColumn(NARROW[name], NONE)
                if name in NARROW
                else GrowingColumn(np.int64, nothing)
                for name in names
            }
            for table, names in tables.items()
        }
        self._nothing = nothing
        self.codes = {what: Codes() for what in codes}
        self.without_start: Counter[str] = Counter()
        self.counts: Counter[tuple[str, ...]] = Counter()

    def add(self, block: BlockColumns) -> None:
        """Append the rows of a block; columns of tables that were not asked for are let go."""
        self.without_start += block.without_start
        self.counts += block.counts
        maps = {
            # One more entry at the end: code -1, "none", stays what it is.
            what: np.append(self.codes[what].of(values), self._nothing)
            for what, values in block.values.items()
            if what in self.codes
        }
        for table, columns in self._columns.items():
            if table not in block.tables:
                continue
            found = block.tables[table]
            for name, column in columns.items():
                if name in found:
                    array = found[name]
                    column.add(maps[name][array] if name in maps else array)
                else:
                    column.add_nothing(len(found["start"]))

    def finish(self) -> dict[str, dict[str, Ints]]:
        """The tables; a column in which no row has anything takes no memory."""
        return {
            table: {name: column.finish() for name, column in columns.items()}
            for table, columns in self._columns.items()
        }
