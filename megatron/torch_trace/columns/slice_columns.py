# SPDX-License-Identifier: Apache-2.0
"""The table of every slice, with the ids, sizes and collectives that torch writes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from megatron.torch_trace.columns.arguments import SlimEventWithArgs, arguments, integer, numbers
from megatron.torch_trace.columns.builder import (
    BlockColumns,
    ColumnBuilder,
    EventKind,
    Rows,
    Table,
)
from megatron.torch_trace.columns.codes import Codes
from megatron.torch_trace.columns.intervals import Ints
from megatron.torch_trace.format.integer_arrays import distinct
from megatron.torch_trace.format.times import NO_TIME
from megatron.torch_trace.reader import Args

SLICE = "slice"

MISSING = NO_TIME
"""Stands for "has none" in every column: -1 may be an id."""

INTEGER_ARGS = (
    "stream",
    "device",
    "correlation",
    "external_id",
    "ev_idx",
    "sequence_number",
    "fwd_thread_id",
    "python_id",
    "python_parent_id",
)
COLLECTIVE_ARGS = (
    "collective",
    "in_nelems",
    "out_nelems",
    "group_size",
    "dtype",
    "group_name",
    "group_description",
    "group_ranks",
    "in_split",
    "out_split",
    "seq",
    "src_rank",
    "dst_rank",
)
COLLECTIVE_NUMBERS = frozenset(
    {"in_nelems", "out_nelems", "group_size", "seq", "src_rank", "dst_rank"}
)
COLUMNS = ("start", "dur", "name", "category", "track", *INTEGER_ARGS, "bytes", "args")
CODES = ("name", "category", "track", "args")

_CALL = ("correlation", "external_id")
_GPU = (*_CALL, "stream", "device")
_OPERATOR = ("external_id", "ev_idx", "sequence_number", "fwd_thread_id")
_ARGS_OF = {
    "kernel": _GPU,
    "gpu_memcpy": _GPU,
    "gpu_memset": _GPU,
    "cuda_runtime": _CALL,
    "cuda_driver": _CALL,
    "cpu_op": _OPERATOR,
    "user_annotation": _OPERATOR,
    "python_function": ("ev_idx", "python_id", "python_parent_id"),
}
"""What events of the usual categories have; of all others every argument is looked for."""
_COLLECTIVE = attrgetter(*COLLECTIVE_ARGS)


class SliceTable:
    """Every slice of a block.

    Args:
        without: categories to leave out.
    """

    name = SLICE

    def __init__(self, without: Collection[str] = frozenset()) -> None:
        self._without = frozenset(without)

    def wants(self, kind: EventKind) -> bool:
        return kind.phase == "X" and kind.category not in self._without

    def choose(self, rows: Rows, found: BlockColumns) -> Rows:
        return rows

    def columns(self, rows: Rows) -> dict[str, Ints]:
        kinds, codes = rows.view.kinds, rows.view.codes_of("category")
        args = arguments(rows.events, Args)
        # A kind's category gets its code when it is first seen in this table.
        present = distinct(rows.kind).tolist()
        code = {number: codes[kinds[number].category] for number in present}
        found = rows.common() | {
            "category": rows.of_kinds([code.get(number, 0) for number in range(len(kinds))]),
            "bytes": numbers([integer(a.bytes_) for a in args], MISSING),
            "args": _collectives(args, rows.view.codes_of("args")),
        }
        for key in INTEGER_ARGS:
            asked = [key in _ARGS_OF.get(kind.category, INTEGER_ARGS) for kind in kinds]
            where = np.flatnonzero(rows.of_kinds(asked))
            if len(where):
                get = attrgetter(key)
                values = numbers([get(args[row]) for row in where.tolist()], MISSING)
                found[key] = np.full(len(args), MISSING, dtype=np.int64)
                found[key][where] = values
        return found


class SliceBuilder(ColumnBuilder):
    """Slices, and other tables beside them."""

    def __init__(self, without: Collection[str], others: Sequence[Table] = ()) -> None:
        super().__init__((SliceTable(without), *others))


def _collectives(args: list[Args], codes: Codes) -> Ints:
    rows: list[Any] = [-1 if a.collective is None else codes[_COLLECTIVE(a)] for a in args]
    return np.array(rows, dtype=np.int64)


EVENT = SlimEventWithArgs
"""What blocks are decoded as."""
