# SPDX-License-Identifier: Apache-2.0
"""What one export is, and its first step, the save by Kineto; compression.py does the rest.

Who runs the steps, and when, is background.py's matter.

torch's own `.json.gz` export writes the raw trace to $TMPDIR, reads it back and compresses it with
Python's gzip, all while training waits. Here the raw file lies beside the target (or in the
scratch folder), where the space is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megatron.torch_profile.export.compression import check_whole
from megatron.torch_profile.plan.capture_plan import CapturePlan
from megatron.torch_profile.plan.schedule import Window
from megatron.torch_trace.format.file_names import (
    DESTINATION_FILE,
    TraceName,
    UnfinishedName,
)
from megatron.torch_trace.format.suffixes import TEMPORARY_SUFFIX


@dataclass(frozen=True, slots=True)
class Export:
    """One trace on its way out.

    Args:
        rank: for the log.
        window: what was to be recorded.
        recorded: the iterations that were.
        folder: the window's folder.
        name: the trace's name in it.
        scratch: folder of the node in which raw and compressed files grow; the window's if None.
        key_averages, stacks: which artifacts to write too.
        partials: whether the trace is analysed beside training; see `config.py`.
        gpu: whether the GPU was to be recorded.
        draws_backward: whether the backward spans of modules are to be drawn into it.
        urgent: the process may be killed any moment.
        prepared: whether its folders are there; else whoever writes makes them.
        pid: the training process, also where a child of it writes.
    """

    rank: int
    window: Window
    recorded: tuple[int, ...]
    folder: Path
    name: TraceName
    scratch: Path | None = None
    key_averages: bool = False
    stacks: bool = False
    partials: str = "never"
    gpu: bool = False
    draws_backward: bool = False
    urgent: bool = False
    prepared: bool = True
    pid: int = field(default_factory=os.getpid)

    @classmethod
    def of(
        cls, plan: CapturePlan, window: Window, recorded: list[int], urgent: bool, cut: bool
    ) -> Export:
        """The export of a window that a plan wants; `cut` if its last iteration is not whole."""
        config = plan.config
        whole = not cut and recorded == list(range(window.first, window.last + 1))
        return cls(
            rank=plan.topology.rank,
            window=window,
            recorded=tuple(recorded),
            folder=plan.window_folder(window),
            name=plan.trace_name(partial=not whole),
            scratch=Path(config.scratch_dir) if config.scratch_dir else None,
            key_averages=config.key_averages,
            partials=config.partials,
            stacks=config.stacks,
            gpu="cuda" in plan.activities,
            draws_backward=config.draws_backward,
            urgent=urgent,
        )

    @property
    def target(self) -> Path:
        """The finished trace."""
        return self.folder / str(self.name)

    @property
    def raw(self) -> Path:
        """Kineto's raw file, while it exists: named by process, so no two writers share it."""
        return self._grows_in / str(UnfinishedName(str(self.name), self.pid, raw=True))

    @property
    def _grows_in(self) -> Path:
        if self.scratch is None:
            return self.folder
        # One for each trace: whoever is done may remove it without asking the node's other ranks.
        return self.scratch / f"{self.folder.parent.name}.{self.folder.name}.{self.name.stem}"

    def prepare(self) -> None:
        """Make the folders; one on scratch says for `torch-trace recover` where its trace goes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.scratch is not None:
            self._grows_in.mkdir(parents=True, exist_ok=True)
            (self._grows_in / DESTINATION_FILE).write_text(f"{self.folder}\n")


def save(profiler: Any, export: Export) -> int:
    """Have Kineto write the raw trace, which it does once for each result and process.

    Returns:
        Its size in bytes.

    Raises:
        TorchTraceError: the file is cut short.
    """
    with plain_path(export.raw) as path:
        profiler.export_chrome_trace(path)
    take_begun(export)
    return check_whole(export.raw)


def take_begun(export: Export) -> None:
    """Newer versions of Kineto write beside the raw file first, and leave that when they fail."""
    begun = export.raw.with_name(export.raw.name + TEMPORARY_SUFFIX)
    if begun.exists() and not export.raw.exists():
        begun.rename(export.raw)


@contextmanager
def plain_path(path: Path) -> Iterator[str]:
    """A path that Kineto can take: it writes it into the trace as it is, a quote too, and takes a
    backslash for a slash."""
    text, descriptors = str(path), Path("/proc/self/fd")
    if (text.isprintable() and not {'"', "\\"} & set(text)) or not descriptors.exists():
        yield text
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        yield str(descriptors / str(folder) / path.name)
    finally:
        os.close(folder)


def let_go(profiler: Any) -> None:
    """Free Kineto's result now, which is five times the raw trace: torch's profile is a cycle, and
    Megatron may have switched the collector of cycles off (--manual-gc)."""
    if profiler is not None:
        profiler.profiler = None
