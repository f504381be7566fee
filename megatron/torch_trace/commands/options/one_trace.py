# SPDX-License-Identifier: Apache-2.0
"""The argument of commands that take one trace."""

from __future__ import annotations

from pathlib import Path

from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.files.path_kinds import absence, is_file, is_folder


def refuse_all_but_one_trace(path: str, command: str) -> None:
    """Say it as all other commands do, if there is no such file.

    Raises:
        UsageError: it is a folder, or nothing.
    """
    if is_folder(Path(path)):
        raise UsageError(
            f"{path}: is a folder, and {command} takes one trace; name a file in the folder."
        )
    if path != "-" and not is_file(Path(path)):
        raise UsageError(f"{path}: {absence(Path(path))}.")
