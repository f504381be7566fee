# SPDX-License-Identifier: Apache-2.0
"""Tables to disk; a disk that does not take them is an OSError, however polars says it."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron.torch_trace.wording import path_text

if TYPE_CHECKING:
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
