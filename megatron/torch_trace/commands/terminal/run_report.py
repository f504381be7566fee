# SPDX-License-Identifier: Apache-2.0
"""The report of a run with several windows, window by window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron.torch_trace.commands.terminal.analysis_progress import analysed
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.format.file_names import RUN_FILE


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A run, and the folders of its windows, ascending."""

    folder: Path
    windows: tuple[Path, ...]


def run_of(paths: Sequence[str]) -> RunFolder | None:
    """The run that a folder is of; None if it is of one window, or of several runs.

    A run that has recorded nothing yet has its `run.json`.
    """
    if len(paths) != 1 or not Path(paths[0]).is_dir():
        return None
    from megatron.torch_trace.analysis.run import rank_sources
    from megatron.torch_trace.files.selection import windows_of

    try:
        windows = windows_of(rank_sources.find(paths).traces)
    except UsageError:
        folder = Path(paths[0])
        return RunFolder(folder, ()) if (folder / RUN_FILE).is_file() else None
    runs = {window.parent for window in windows}
    if len(windows) < 2 or len(runs) != 1:
        return None
    return RunFolder(runs.pop(), tuple(windows))


def run_page(run: RunFolder, **options: Any) -> str:
    """The page; `options` are those of `torch_trace.analyze`.

    Raises:
        UsageError: no window can be analysed.
    """
    from megatron.torch_trace.report.run_page.page import render_run
    from megatron.torch_trace.report.run_page.windows import read_windows

    found = read_windows(run.windows, lambda window: analysed(window.name, str(window), **options))
    if found.last is None and found.failures:
        raise UsageError(f"{run.folder}: no window can be analysed: {found.failures[0]}")
    return render_run(run.folder, found)
