# SPDX-License-Identifier: Apache-2.0
"""Where a converted timeline lies, and whether it is still one of these traces.

    iter-0000005/artifacts/timeline.pftrace.gz        all traces of the folder
    iter-0000005/artifacts/timeline-1a2b3c4d.pftrace.gz    some of them
    ~/.cache/torch-trace/1a2b3c4d/timeline.pftrace.gz      where the folder cannot be written

Beside it lies `<name>.json`: the offsets of the ranks, and size and time of each trace.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from megatron.torch_trace.errors import TorchTraceError
from megatron.torch_trace.files.atomic import atomic_path
from megatron.torch_trace.files.json_object import read_object
from megatron.torch_trace.format.file_names import ARTIFACTS
from megatron.torch_trace.format.suffixes import TEMPORARY_SUFFIX

FORMAT = 3
"""Raised when a newer version of this program makes other timelines from the same traces."""

_NAME = "timeline"
_SUFFIX = ".pftrace.gz"


def timeline_file(traces: Sequence[Path], *, whole_folder: bool) -> Path:
    """The file for the timeline of `traces`, in a folder that can be made and written.

    Args:
        traces: at least one.
        whole_folder: the user named the folder, not some of its traces.

    Raises:
        TorchTraceError: there is no such folder.
    """
    folder = traces[0].absolute().parent
    whole_folder = whole_folder and all(one.absolute().parent == folder for one in traces)
    key = hashlib.sha256("\0".join(str(one.absolute()) for one in traces).encode()).hexdigest()[:8]
    name = f"{_NAME}{_SUFFIX}" if whole_folder else f"{_NAME}-{key}{_SUFFIX}"
    here = folder / ARTIFACTS
    if _can_write(here):
        return here / name
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    there = cache / "torch-trace" / key
    if _can_write(there):
        return there / name
    raise TorchTraceError(
        f"{here} and {there}: neither can be written, so the timeline cannot be kept; set "
        "XDG_CACHE_HOME to a folder that can be written."
    )


def _can_write(folder: Path) -> bool:
    """By trying, since rights do not tell it on every file system; nothing is left behind."""
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{_NAME}.{os.getpid()}{TEMPORARY_SUFFIX}"
        probe.touch()
        probe.unlink()
        if is_new:
            folder.rmdir()
    except OSError:
        return False
    return True


def cached_offsets(file: Path, traces: Sequence[Path]) -> dict[int, int] | None:
    """Offsets of the ranks in `file`, ns; None if there is none, or a link, or of other traces."""
    if file.is_symlink() or not file.is_file():
        return None
    try:
        beside = read_object(_beside(file))
        if beside["format"] != FORMAT or beside["sources"] != _sources(traces):
            return None
        return {int(rank): int(offset) for rank, offset in beside["offset_ns"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def converted(
    file: Path, traces: Sequence[Path], on_progress: Callable[[float], None]
) -> tuple[dict[int, int], bool]:
    """The timeline of `traces` in `file`: the one that is there, or a new one.

    Returns:
        Offsets of the ranks, ns, and whether it was there.

    Raises:
        TorchTraceError: the traces cannot be converted.
    """
    offsets = cached_offsets(file, traces)
    if offsets is not None:
        return offsets, True
    from megatron.torch_trace.perfetto.convert import convert

    file.parent.mkdir(parents=True, exist_ok=True)
    found = convert(traces, file, force=True, on_progress=on_progress)
    remember(file, traces, found.offset_ns)
    return dict(found.offset_ns), False


def forget(file: Path) -> None:
    """Remove a timeline and what is written down of it."""
    for one in (file, _beside(file)):
        one.unlink(missing_ok=True)


def remember(file: Path, traces: Sequence[Path], offsets: Mapping[int, int]) -> None:
    """Write down of which traces `file` is."""
    beside = {"format": FORMAT, "offset_ns": dict(offsets), "sources": _sources(traces)}
    with atomic_path(_beside(file)) as unfinished:
        unfinished.write_text(json.dumps(beside))


def _beside(file: Path) -> Path:
    return file.with_name(f"{file.name}.json")


def _sources(traces: Sequence[Path]) -> list[dict[str, Any]]:
    return [
        {"file": str(path.absolute()), "bytes": status.st_size, "mtime_ns": status.st_mtime_ns}
        for path in traces
        for status in [path.stat()]
    ]
