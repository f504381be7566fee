# SPDX-License-Identifier: Apache-2.0
"""Files that are read more than once must stay the same from the first reading to the last."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from megatron.torch_trace.errors import TorchTraceError


class Unchanged:
    """Notes files when it is made, and looks at them again when its context ends.

    Args:
        paths: `-` is standard input, which is read once.

    Raises:
        TorchTraceError: at the end, a file is another one, also if that made the reading fail.
    """

    def __init__(self, paths: Iterable[Path | str]) -> None:
        self._noted = {path: _state(path) for path in map(Path, paths) if str(path) != "-"}

    def __enter__(self) -> Unchanged:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and not isinstance(error, Exception):
            return
        for path, noted in self._noted.items():
            if _state(path) != noted:
                raise TorchTraceError(
                    f"{path}: has changed while it was read; try again when it is complete."
                ) from error


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
