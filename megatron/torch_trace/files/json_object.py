# SPDX-License-Identifier: Apache-2.0
"""Small JSON files that lie beside traces, such as `run.json`, which anybody may have damaged."""

from __future__ import annotations

from pathlib import Path
from stat import S_ISREG
from typing import Any

from megatron.torch_trace.format.json_text import value_of

_MOST_BYTES = 64 << 20


def read_object(path: Path) -> dict[str, Any]:
    """The object that a file holds.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no regular file, larger than 64 MiB, no JSON, or no object.
    """
    status = path.stat()
    # What is no file, a pipe for one, might never end.
    if not S_ISREG(status.st_mode):
        raise ValueError("it is no regular file")
    if status.st_size > _MOST_BYTES:
        raise ValueError(f"it is larger than {_MOST_BYTES >> 20} MiB")
    found = value_of(path.read_bytes())
    if not isinstance(found, dict):
        raise ValueError("it holds no object")
    return found
