# SPDX-License-Identifier: Apache-2.0
"""Arguments of events as columns: all events with the same keys, of the same types, together.

In that form every argument of such a schema has a fixed offset and width in its packet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from megatron.torch_trace.columns.arguments import SlimEventWithArgs
from megatron.torch_trace.columns.codes import Codes, coded
from megatron.torch_trace.format.categories import LAUNCHES

ALL, SOME, NONE = "all", "some", "none"
CHOICES = (ALL, SOME, NONE)

WORTH_READING = frozenset(
    {
        "correlation", "stream", "grid", "block", "registers per thread", "shared memory",
        "est. achieved occupancy %", "bytes", "memory bandwidth (GB/s)",
        "External id", "Input Dims", "Input type", "Sequence number",
        "Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype",
        "Process Group Name", "Process Group Description", "Process Group Ranks", "Seq",
        "Src Rank", "Dst Rank", "In split size", "Out split size",
        "Bytes", "Total Allocated", "Total Reserved", "Device Id",
    }
)  # fmt: skip
"""What one looks for when one has clicked on a slice, and what links it to others."""

_SILENT = frozenset(
    {"user_annotation", "gpu_user_annotation", "python_function", "overhead"} | LAUNCHES
)
"""Categories whose arguments are numbers of torch's own; what they link is told by arrows."""

SHAPES = b'"Input Dims"'
"""Is in the text of a block if shapes were recorded: of all its operators that have inputs."""

_EMPTY = 2

INTEGER, REAL, FLAG, TEXT = "integer", "real", "flag", "text"
_KINDS = {int: INTEGER, float: REAL, bool: FLAG, str: TEXT, list: TEXT, dict: TEXT}

Schema = tuple[tuple[str, str], ...]
"""(key, kind of value) of each argument."""


class ArgumentRows(NamedTuple):
    """Events of one schema.

    Args:
        schema: what their arguments are.
        rows: the events.
        columns: one array for each argument, 64 bits; text as codes.
    """

    schema: Schema
    rows: NDArray[np.int64]
    columns: list[NDArray[Any]]


class ArgumentReader:
    """Decodes the arguments that a choice wants.

    Args:
        choice: ALL, SOME or NONE.
    """

    def __init__(self, choice: str) -> None:
        self.choice = choice

    def chosen(
        self,
        category: str,
        events: Sequence[SlimEventWithArgs],
        rows: list[int],
        *,
        has_shapes: bool,
    ) -> tuple[list[bytes], list[int]]:
        """Those of the events of one category that have arguments worth decoding.

        Args:
            has_shapes: `SHAPES` is in their block.

        Returns:
            (their arguments as text, their rows).
        """
        if self.choice == NONE or (self.choice == SOME and category in _SILENT):
            return [], []
        if self.choice == SOME and category == "cpu_op" and not has_shapes:
            rows = [row for row in rows if events[row].name == "record_param_comms"]
        texts = [bytes(events[row].args) for row in rows]
        if all(len(text) > _EMPTY for text in texts):
            return texts, rows
        filled = [nth for nth, text in enumerate(texts) if len(text) > _EMPTY]
        return [texts[nth] for nth in filled], [rows[nth] for nth in filled]

    def read(
        self, texts: Sequence[bytes], rows: Sequence[int], strings: Codes
    ) -> list[ArgumentRows]:
        """Decode.

        Args:
            texts: JSON objects.
            rows: the event of each.
            strings: given a code for each text value.
        """
        decoded = _decode(texts)
        keys, code = coded(list(map(tuple, decoded)))
        found: list[ArgumentRows] = []
        for number, names in enumerate(keys):
            alike = np.flatnonzero(code == number).tolist()
            columns = list(zip(*[decoded[nth].values() for nth in alike], strict=True))
            chosen = [
                (name, column)
                for name, column in zip(names, columns, strict=True)
                if self.choice == ALL or name in WORTH_READING
            ]
            if chosen:
                mine = np.array([rows[nth] for nth in alike], dtype=np.int64)
                found += _typed(chosen, mine, strings)
        return found


def _decode(texts: Sequence[bytes]) -> list[dict[str, Any]]:
    try:
        return _DECODER.decode(b"[%b]" % b",".join(texts))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return [_decode_one(text) for text in texts]


def _decode_one(text: bytes) -> dict[str, Any]:
    import json

    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


_DECODER = msgspec.json.Decoder(list[dict[str, Any]])


def _typed(
    columns: list[tuple[str, tuple[Any, ...]]], rows: NDArray[np.int64], strings: Codes
) -> Iterable[ArgumentRows]:
    kinds = [_kind(set(map(type, column))) for _, column in columns]
    if None not in kinds:
        arrays = []
        schema = []
        for (name, column), kind in zip(columns, kinds, strict=True):
            assert kind is not None
            kind, array = _array(column, kind, strings)
            schema.append((name, kind))
            arrays.append(array)
        return [ArgumentRows(tuple(schema), rows, arrays)]
    # Here a value is a number, there null: events of the same types together.
    types, code = coded(
        [tuple(map(type, values)) for values in zip(*(c for _, c in columns), strict=True)]
    )
    found: list[ArgumentRows] = []
    for number, signature in enumerate(types):
        alike = np.flatnonzero(code == number).tolist()
        part = [
            (name, tuple(column[nth] for nth in alike))
            for (name, column), kind in zip(columns, signature, strict=True)
            if kind is not type(None)
        ]
        if part:
            found += _typed(part, rows[alike], strings)
    return found


def _kind(types: set[type]) -> str | None:
    if types == {int, float}:
        return REAL
    kinds = {_KINDS.get(one) for one in types}
    return kinds.pop() if len(kinds) == 1 else None


def _array(
    column: tuple[Any, ...], kind: str, strings: Codes
) -> tuple[str, NDArray[np.int64] | NDArray[np.float64]]:
    if kind == TEXT:
        return kind, strings.of([v if type(v) is str else _text(v) for v in column])
    try:
        if kind == REAL:
            return kind, np.array(column, dtype=np.float64)
        return kind, np.array(column, dtype=np.int64)
    except OverflowError:
        return TEXT, strings.of(list(map(str, column)))


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
