# SPDX-License-Identifier: Apache-2.0
"""A file without a name for what does not fit into memory: gone when the process is, however."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")

_IN_MEMORY_BYTES = 4 << 20


class NamelessFile(Generic[T]):
    """Batches that are written one after the other and read again from the first, pickled.

    Args:
        folder: where it takes space; None for the system's own folder. A few MB stay in memory.
    """

    def __init__(self, folder: Path | None) -> None:
        self._file = tempfile.SpooledTemporaryFile(  # noqa: SIM115
            max_size=_IN_MEMORY_BYTES, dir=None if folder is None else str(folder)
        )
        self._batches = 0

    def __enter__(self) -> NamelessFile[T]:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def add(self, batch: T) -> None:
        self.add_pickled(pickle.dumps(batch, protocol=5))

    def add_pickled(self, text: bytes) -> None:
        """Add a batch that another process has pickled."""
        self._file.write(text)
        self._batches += 1

    def __iter__(self) -> Iterator[T]:
        """All batches; nothing may be added before the last one is read."""
        self._file.seek(0)
        for _ in range(self._batches):
            yield pickle.load(self._file)

    def close(self) -> None:
        self._file.close()
