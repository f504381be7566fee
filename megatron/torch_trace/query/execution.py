# SPDX-License-Identifier: Apache-2.0
"""A query over tables, by polars."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl

from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.files.parquet import write_parquet
from megatron.torch_trace.parquet.schemas import SCHEMAS
from megatron.torch_trace.query.mistakes import mistake

_MISTAKES = (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError)
"""A query may be wrong in ways that polars does not foresee: then it panics."""


def execute(frames: Mapping[str, pl.LazyFrame], query: str, file: Path | None = None) -> None:
    """Write the answer to a file, or only see whether there is one.

    Raises:
        UsageError: the query is wrong.
        OSError: the answer cannot be written.
    """
    try:
        result = pl.SQLContext(frames, eager=False).execute(query)
        if not result.collect_schema():
            raise UsageError("the query has no columns; name one, or *.")
        if file is None:
            result.collect()
        else:
            write_parquet(result, file)
    except (*_MISTAKES, OSError) as error:
        said = error.__cause__ if isinstance(error, OSError) else error
        if not isinstance(said, _MISTAKES) or "os error" in str(said):
            raise
        columns = {name: frame.collect_schema().names() for name, frame in frames.items()}
        raise mistake(said, columns, [*SCHEMAS]) from error
