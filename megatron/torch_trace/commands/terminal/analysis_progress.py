# SPDX-License-Identifier: Apache-2.0
"""What the subcommands that analyse share: the bar over files, and the word about damaged ones."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron.torch_trace.commands import terminal
from megatron.torch_trace.commands.terminal import interruption
from megatron.torch_trace.commands.terminal.early_readers import readers_of
from megatron.torch_trace.errors import DamagedTraceError

if TYPE_CHECKING:
    from megatron.torch_trace.allocator.ranks.stages import RankMemory
    from megatron.torch_trace.analysis.results.analysis import Analysis


_MANY = 1_024
"""Fewer kept analyses are merged in seconds."""
_EVERY = 64
_QUIET_S = 15.0
"""Nobody wants a line more often in a log."""


class Progress(ExitStack):
    """A bar over the kept analyses, then one over the files that are read, if any.

    In a log the kept analyses of many ranks are a line now and then; files have a bar on a terminal
    only.

    Args:
        title: before the bar.
        clock: seconds.
    """

    def __init__(self, title: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._title = title
        self._clock = clock
        self._advance: Callable[[int], None] | None = None
        self._of_kept = ExitStack()
        self._tell: Callable[[float], None] | None = None
        self._said = 0.0

    def kept(self, done: int, count: int) -> None:
        """For `analyze(on_kept=...)`."""
        if count < _MANY:
            return
        if self._tell is None:
            self.push(self._of_kept)
            told = f"{self._title}: kept analyses"
            self._tell = self._of_kept.enter_context(terminal.progress_of_work(told))
            self._said = self._clock()
        if done % _EVERY:
            return
        self._tell(done / count)
        if not sys.stderr.isatty() and self._clock() - self._said >= _QUIET_S:
            self._said = self._clock()
            terminal.say(f"torch-trace: kept analyses of {done:,} of {count:,} ranks are read.")

    def start(self, files: list[Path]) -> None:
        """For `analyze(on_start=...)`."""
        self._of_kept.close()
        if self._tell is not None and not files:
            terminal.say("torch-trace: all kept analyses are read; the ranks are compared now.")
        if files:
            self._advance = self.enter_context(terminal.progress_of_many(self._title, files))

    def done(self, file: Path) -> None:
        """For `analyze(on_done=...)`."""
        if self._advance and file.is_file():
            self._advance(file.stat().st_size)


def analysed(title: str, paths: str | Sequence[str], **options: Any) -> Analysis:
    """The analysis of traces alone, with a bar; `options` are those of `analyze`."""
    options["ranks"] = options["ranks"] or None
    with _readers(paths, options), Progress(title) as progress:
        # Imported here: meanwhile the other processes start.
        from megatron.torch_trace.analysis.run.analyse import analyze

        return analyze(
            paths,
            on_start=progress.start,
            on_done=progress.done,
            on_kept=progress.kept,
            **options,
        )


def analysed_with_memory(
    title: str, paths: str | Sequence[str], *, needs: str = "", **options: Any
) -> tuple[Analysis, tuple[RankMemory, ...]]:
    """The same, with the findings of the allocator snapshots beside the traces, and their answers.

    Args:
        title: of the bar.
        paths: traces and folders.
        needs: a module that the caller will import, which other processes need not wait for.
        options: of `torch_trace.analyze`.
    """
    options["ranks"] = options["ranks"] or None
    with _readers(paths, options), Progress(title) as progress:
        # Imported here: meanwhile the other processes start.
        from megatron.torch_trace.allocator.ranks import analysed as with_memory

        if needs:
            import_module(needs)
        found = with_memory.analysed_with_memory(
            paths,
            on_start=progress.start,
            on_done=progress.done,
            on_kept=progress.kept,
            **options,
        )
    interruption.spare(found)
    return found


def _readers(
    paths: str | Sequence[str], options: Mapping[str, Any]
) -> AbstractContextManager[None]:
    return readers_of(paths, options.get("jobs"), use_partials=options.get("use_partials", True))


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
