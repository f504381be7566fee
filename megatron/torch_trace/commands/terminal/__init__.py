# SPDX-License-Identifier: Apache-2.0
"""What a person sees: sentences, tables, a progress bar on a terminal only."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron.torch_trace.wording import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_LOG_WIDTH = 120


def console() -> Console:
    """Standard output; in a log plain, and as wide as a line of a log may be."""
    from rich.console import Console

    class OurConsole(Console):
        def on_broken_pipe(self) -> None:
            # rich would end with status 1; whoever read our output has seen enough (see `run`).
            raise BrokenPipeError

    if sys.stdout.isatty():
        return OurConsole(highlight=False)
    file: Any = _WithoutTrailingBlanks()
    return OurConsole(highlight=False, width=_LOG_WIDTH, color_system=None, file=file)


class _WithoutTrailingBlanks:
    """Standard output for tables, whose last column rich fills up with blanks."""

    def write(self, text: str) -> int:
        return sys.stdout.write(re.sub(r" +$", "", text, flags=re.MULTILINE))

    def flush(self) -> None:
        sys.stdout.flush()


def sentence(console: Console, markup: str) -> None:
    """Print a sentence: folded on a terminal, on one line in a log, where it can be searched."""
    console.print(markup, soft_wrap=not console.is_terminal)


def literal(text: object) -> str:
    """Text from a file or a path, whose brackets are no markup: `[bold]` stays what it is."""
    from rich.markup import escape

    return escape(visible(text))


def table(*columns: str, right: Sequence[int] = ()) -> Table:
    """A table without lines; columns whose numbers are in `right` are aligned there."""
    from rich.table import Table

    result = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for number, column in enumerate(columns):
        result.add_column(column, justify="right" if number in right else "left", overflow="fold")
    return result


def on_own_lanes(crossing: int) -> str:
    """A sentence about slices that were moved, with a blank before it; nothing where none was."""
    if not crossing:
        return ""
    if crossing == 1:
        return " 1 slice that crossed another one is on a lane of its own."
    return f" {crossing:,} slices that crossed others are on lanes of their own."


def say(message: str) -> None:
    """One line on standard error."""
    print(visible(message), file=sys.stderr, flush=True)


def progress(
    label: str, path: Path | str, *, passes: int = 1
) -> AbstractContextManager[Callable[[int], None]]:
    """A progress bar over the bytes of a file; on a terminal only.

    Args:
        passes: how often the file will be read.
    """
    return progress_of_many(label, [Path(path)], passes=passes)


@contextmanager
def progress_of_many(
    label: str, paths: Sequence[Path], *, passes: int = 1
) -> Iterator[Callable[[int], None]]:
    """The same over several files."""
    if not sys.stderr.isatty() or not all(path.is_file() for path in paths):
        yield _nothing
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskProgressColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    bar = Progress(
        "{task.description}",
        BarColumn(),
        # Read several times, a file would seem larger than it is.
        DownloadColumn() if passes == 1 else TaskProgressColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        total = sum(path.stat().st_size for path in paths) * passes
        task: Any = bar.add_task(label, total=total)
        yield lambda count: bar.advance(task, count)


@contextmanager
def progress_of_work(label: str) -> Iterator[Callable[[float], None]]:
    """A progress bar over work whose done part, 0 to 1, is told; on a terminal only."""
    if not sys.stderr.isatty():
        yield _nothing
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task: Any = bar.add_task(label, total=1.0)
        yield lambda done: bar.update(task, completed=done)


def _nothing(count: float) -> None:
    pass
