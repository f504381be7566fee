# SPDX-License-Identifier: Apache-2.0
"""Tables to disk, and columns from what was read of it.

A disk that does not take a table is an OSError, however polars says it.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron.torch_trace.wording import path_text

if TYPE_CHECKING:
    import numpy.typing as npt
    import polars as pl

_NUMBER = re.compile(r"\(os error (\d+)\)")


def write_parquet(frame: pl.DataFrame | pl.LazyFrame, path: Path, **options: Any) -> None:
    """Write a table.

    Args:
        options: of polars' own `write_parquet` or `sink_parquet`.

    Raises:
        OSError: the disk does not take it.
    """
    import polars as pl

    if path_text(path) != str(path):
        raise OSError(errno.EILSEQ, "its name is not UTF-8, which polars cannot write to")
    try:
        if isinstance(frame, pl.LazyFrame):
            frame.sink_parquet(path, **options)
        else:
            frame.write_parquet(path, **options)
    except pl.exceptions.PolarsError as error:
        raise _of_the_disk(error, path) from error


def columns_of(content: bytes, names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """These columns of one small file; polars' errors are the caller's."""
    import polars as pl

    # A few thousand rows: threads would cost more than they save.
    frame = pl.read_parquet(content, parallel="none")
    return {name: frame[name].to_numpy() for name in names}


def columns_of_several(
    contents: Sequence[bytes], names: Sequence[str]
) -> list[dict[str, npt.NDArray[Any]]] | None:
    """The same of several files at once, which takes half of the time; None where that fails.

    Which rows are of which file is not told: what polars has read in one piece is taken for one
    file, if there are as many pieces as files. Whoever calls this must see whether that is so.
    """
    if len(contents) < 2:
        return None
    import polars as pl

    try:
        frame = pl.read_parquet([*contents], parallel="none")
        pieces = [frame[name].get_chunks() for name in names]
    except (Exception, pl.exceptions.PanicException):  # one is damaged, or has other columns
        return None
    if any(len(of_column) != len(contents) for of_column in pieces):
        return None
    arrays = ([piece.to_numpy() for piece in of_column] for of_column in pieces)
    return [dict(zip(names, of_file, strict=True)) for of_file in zip(*arrays, strict=True)]


def _of_the_disk(error: Exception, path: Path) -> OSError:
    told = _NUMBER.search(str(error))
    if told:
        return OSError(int(told[1]), os.strerror(int(told[1])), str(path))
    try:
        # Some of its errors keep the system's to themselves: ask the system.
        with path.open("ab", buffering=0) as file:
            file.write(bytes(1 << 16))
    except OSError as why:
        return why
    return OSError(errno.EIO, str(error).splitlines()[0], str(path))
