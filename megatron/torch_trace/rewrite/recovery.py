# SPDX-License-Identifier: Apache-2.0
"""Traces that a killed run left unfinished, on a node's scratch folder or in the run itself.

The order in which a trace is written decides what is worth most: its raw text is complete before
the compressed file begins to grow, and is dropped only after that has arrived. So of what one
writer left, the compressed file counts only where there is no raw text.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from megatron.torch_trace.errors import TorchTraceError, UsageError
from megatron.torch_trace.format.file_names import (
    DESTINATION_FILE,
    RunName,
    UnfinishedName,
    WindowName,
    cut_short,
)
from megatron.torch_trace.format.suffixes import TEMPORARY_SUFFIX
from megatron.torch_trace.rewrite.decompression import OnRead, decompress

_LIVING_SECONDS = 60.0
"""On a shared file system, a file written to more recently than this is still being written."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What one writer left of one trace.

    Attributes:
        files: raw text first.
        target: where the trace belongs.
    """

    files: tuple[Path, ...]
    target: Path

    @property
    def source(self) -> Path:
        """The file to complete it from."""
        return self.files[0]

    @property
    def arrived(self) -> Path | None:
        """The finished trace, whole or partial, where there is one."""
        return next((path for path in (self.target, cut_short(self.target)) if path.exists()), None)

    def is_alive(self, now: float) -> bool:
        """Whether somebody still works on it: certain on a node, by its age elsewhere."""
        if (self.source.parent / DESTINATION_FILE).exists():
            return any(_is_open(path) for path in self.files)
        return any(now - path.stat().st_mtime < _LIVING_SECONDS for path in self.files)


@dataclass(frozen=True, slots=True)
class Recovered:
    """A trace that was completed.

    Attributes:
        target: where it is now.
        lost: what its source had lost, in words; None where it was whole.
    """

    target: Path
    lost: str | None


def find_unfinished(folder: Path, output: Path | None = None) -> list[Unfinished]:
    """What lies unfinished in a scratch folder, a folder of runs, a run or a window.

    Args:
        folder: searched with all below it.
        output: folder of runs that traces on scratch shall go to, instead of the one they name.

    Raises:
        UsageError: no such folder.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; name a node's scratch folder or a run.")
    paths = sorted(folder.absolute().rglob(f"*{TEMPORARY_SUFFIX}"))
    named = [(path, name) for path in paths if (name := UnfinishedName.parse(path.name))]

    def writer(item: tuple[Path, UnfinishedName]) -> tuple[Path, str]:
        return item[0].parent, item[1].trace

    return [
        Unfinished(
            tuple(path for path, _ in sorted(group, key=lambda item: not item[1].raw)),
            _destination(window, output) / trace,
        )
        for (window, trace), group in groupby(sorted(named, key=writer), key=writer)
    ]


def recover(unfinished: Unfinished, on_read: OnRead | None = None) -> Recovered:
    """Complete one trace, then drop what it was completed from, unless that was damaged.

    Args:
        unfinished: `arrived` is None.
        on_read: called with bytes read.

    Raises:
        TorchTraceError: the target cannot be written; everything stays as it is.
    """
    target = unfinished.target
    source = unfinished.source
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TorchTraceError(f"{target.parent}: cannot be made ({error.strerror}).") from error
    result = decompress(source, target, on_read=on_read)
    if result.damage:
        return Recovered(target.rename(cut_short(target)), result.damage.sentence())
    for path in unfinished.files:
        path.unlink(missing_ok=True)
    _leave(source.parent)
    return Recovered(target, None)


def remove_if_empty(scratch: Path) -> None:
    """Remove a scratch folder in which nothing is left."""
    if RunName.parse(scratch.name) or WindowName.parse(scratch.name):
        return
    with suppress(OSError):
        scratch.rmdir()


def _destination(folder: Path, output: Path | None) -> Path:
    """The window's folder that a trace belongs in; where it lies, if that is no scratch folder."""
    note = folder / DESTINATION_FILE
    if not note.is_file():
        return folder
    window = Path(note.read_text().strip())
    return output / window.parent.name / window.name if output else window


def _is_open(path: Path) -> bool:
    """Whether a process of this machine that we may look into has a file open."""
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if descriptor.readlink() == path:
                return True
    return False


def _leave(folder: Path) -> None:
    """Remove the folder that a trace had on scratch."""
    note = folder / DESTINATION_FILE
    if note.exists():
        with suppress(OSError):
            note.unlink()
            folder.rmdir()
