# SPDX-License-Identifier: Apache-2.0
"""Processes that will read traces start while this process imports the analysis.

One of them begins to read at once, if there is one trace alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path

from megatron.torch_trace.format.file_names import ARTIFACTS, found_analysis_of
from megatron.torch_trace.reader.workers import is_large, started_early
from megatron.torch_trace.system.cores import available_cores

_BLOCKS = "megatron.torch_trace.columns.activity_blocks"
_IMPORTS = f"{_BLOCKS}, megatron.torch_trace.reader.stripes"

_MOST = 64
"""Files that are looked at: on a shared file system each question costs."""


def readers_of(
    paths: str | Sequence[str], jobs: int | None, *, use_partials: bool = True
) -> AbstractContextManager[None]:
    """As many as help with one trace; none where the traces are small or need not be read.

    This is a guess from one file for each path: whoever reads starts the processes that are
    missing, and what was started in vain ends with the context.

    Args:
        paths: traces and folders, as a user names them; they may not be there.
        jobs: as the user says.
        use_partials: whether kept analyses stand in for traces.
    """
    named = map(Path, [paths] if isinstance(paths, str) else paths)
    found = (one for path in named for one in _large_files(path))
    to_read = [one for one in found if not (use_partials and found_analysis_of(one).is_file())]
    # Of several nobody knows here which is read first, and by whom.
    first = f"{_BLOCKS}.begin({str(to_read[0])!r})" if len(to_read) == 1 else ""
    return started_early((jobs or available_cores()) - 1, to_read, _IMPORTS, first)


def _large_files(path: Path) -> Iterator[Path]:
    """At most two large files at or below a path; of thousands the others are not asked."""
    return islice(filter(is_large, islice(_files(path), _MOST)), 2)


def _files(path: Path) -> Iterator[Path]:
    yield path
    for folder, inside, names in os.walk(path):
        inside[:] = [name for name in inside if name != ARTIFACTS]
        yield from (Path(folder, name) for name in names)
