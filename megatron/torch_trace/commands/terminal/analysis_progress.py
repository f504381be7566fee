# SPDX-License-Identifier: Apache-2.0
"""What the subcommands that analyse share: the bar over files, and the word about damaged ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron.torch_trace.commands import terminal
from megatron.torch_trace.errors import DamagedTraceError

if TYPE_CHECKING:
    from megatron.torch_trace.analysis.results.analysis import Analysis


class Progress(ExitStack):
    """A bar over the files that are read, if any; on a terminal only.

    Args:
        title: before the bar.
    """

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title
        self._advance: Callable[[int], None] | None = None

    def start(self, files: list[Path]) -> None:
        """For `analyze(on_start=...)`."""
        if files:
            self._advance = self.enter_context(terminal.progress_of_many(self._title, files))

    def done(self, file: Path) -> None:
        """For `analyze(on_done=...)`."""
        if self._advance and file.is_file():
            self._advance(file.stat().st_size)


def analysed(
    title: str, paths: str | Sequence[str], *, with_memory: bool = False, **options: Any
) -> Analysis:
    """The analysis of traces, with a bar.

    Args:
        title: before the bar.
        paths: the traces.
        with_memory: allocator snapshots beside the traces have findings too.
        options: those of `analyze`.
    """
    from megatron.torch_trace.allocator.ranks.analysed import with_memory_findings
    from megatron.torch_trace.analysis.run.analyse import analyze

    options["ranks"] = options["ranks"] or None
    with Progress(title) as progress:
        analysis = analyze(paths, on_start=progress.start, on_done=progress.done, **options)
    return with_memory_findings(analysis) if with_memory else analysis


def raise_if_damaged(*analyses: Analysis) -> None:
    """Say, at the end, what the answer lacks.

    Raises:
        DamagedTraceError: a trace was damaged or could not be analysed.
    """
    damaged = [rank.file for analysis in analyses for rank in analysis.ranks if rank.damage]
    skipped = [one.file for analysis in analyses for one in analysis.skipped_files]
    raise_if_lost(damaged, skipped)


def raise_if_lost(damaged: Sequence[str], skipped: Sequence[str]) -> None:
    """The same from the names of the files.

    Raises:
        DamagedTraceError: there is one.
    """
    from megatron.torch_trace.files.selection import listed

    parts = [f"damaged: {listed(damaged)}"] if damaged else []
    parts += [f"skipped: {listed(skipped)}"] if skipped else []
    if parts:
        raise DamagedTraceError("; ".join(parts) + ".")
