# SPDX-License-Identifier: Apache-2.0
"""Finding the allocator snapshots of a run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.files.sources import absence, by_folder_and_rank, is_file, is_folder

_NAMES = ("*snapshot*.pickle*", "*snapshot*.pkl*", "*.memory_snapshot.*")
_UNFINISHED = ".tmp"


def find_snapshots(paths: Iterable[Path | str]) -> list[Path]:
    """Snapshots in the order of their ranks.

    Args:
        paths: files, taken as they are, or folders, searched with all their folders.

    Raises:
        UsageError: a path is not there, or a folder has no snapshot.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if is_file(path):
            found.append(path)
        elif is_folder(path):
            inside = {one for name in _NAMES for one in path.rglob(name) if one.is_file()}
            inside = {one for one in inside if one.suffix != _UNFINISHED}
            if not inside:
                raise UsageError(
                    f"{path}: no allocator snapshot (such as rank-0.memory_snapshot.pickle) in it; "
                    "torch.cuda.memory._dump_snapshot and Megatron's --record-memory-history "
                    "write them."
                )
            found += sorted(inside, key=by_folder_and_rank)
        else:
            raise UsageError(f"{path}: {absence(path)}.")
    return list(dict.fromkeys(found))
