# SPDX-License-Identifier: Apache-2.0
"""Finding what tells of memory: allocator snapshots, else traces."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.files.path_kinds import absence, is_file, is_folder
from megatron.torch_trace.files.sources import by_folder_and_rank, find_traces
from megatron.torch_trace.format.file_names import ARTIFACTS
from megatron.torch_trace.format.suffixes import TEMPORARY_SUFFIX
from megatron.torch_trace.reader.bytestream import ByteStream

_NAMES = ("*snapshot*.pickle*", "*snapshot*.pkl*")
_PICKLE = b"\x80"


def find_memory_files(paths: Iterable[Path | str]) -> list[Path]:
    """Files in the order of their ranks.

    Args:
        paths: files, taken as they are, or folders, searched with all their folders for snapshots;
            where there are none, for traces.

    Raises:
        UsageError: a path is not there, or a folder has neither.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if is_file(path):
            found.append(path)
        elif is_folder(path):
            found += snapshots_in(path) or _traces(path)
        else:
            raise UsageError(f"{path}: {absence(path)}.")
    return list(dict.fromkeys(found))


def snapshots_in(folder: Path) -> list[Path]:
    """Every snapshot in a folder and its folders, in the order of their ranks."""
    inside = {one for name in _NAMES for one in folder.rglob(name) if one.is_file()}
    whole = [one for one in inside if not one.name.endswith(TEMPORARY_SUFFIX)]
    return sorted(whole, key=by_folder_and_rank)


def snapshots_of_window(folder: Path) -> list[Path]:
    """The snapshots of a window: in its folder and in its `artifacts/`, nowhere else."""
    inside = [
        one for name in _NAMES for where in (folder, folder / ARTIFACTS) for one in where.glob(name)
    ]
    whole = {one for one in inside if one.is_file() and not one.name.endswith(TEMPORARY_SUFFIX)}
    return sorted(whole, key=by_folder_and_rank)


def is_snapshot(path: Path) -> bool:
    """Whether a file is a pickle, by its first byte."""
    return next(iter(ByteStream(path)), b"").startswith(_PICKLE)


def _traces(folder: Path) -> list[Path]:
    try:
        return find_traces([folder]).traces
    except UsageError:
        raise UsageError(
            f"{folder}: neither an allocator snapshot (such as rank-0.memory_snapshot.pickle) nor "
            "a trace in it."
        ) from None
