# SPDX-License-Identifier: Apache-2.0
"""Ranks that the timeline of very many does not show: it is made again with those asked for."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from megatron.torch_trace import wording
from megatron.torch_trace.errors import UsageError
from megatron.torch_trace.viewing import cache
from megatron.torch_trace.viewing.progress import FAILED, READY, WORKING, Progress, StoppedError
from megatron.torch_trace.viewing.served_file import ServedFile
from megatron.torch_trace.viewing.timeline_ranks import MOST_RANKS

_RANKS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_MOST_TOLD = 40


def named_ranks(text: str, there: Collection[int]) -> list[int]:
    """The ranks that `0-3,17` names, ascending.

    Args:
        text: what somebody has typed.
        there: the ranks that have a trace.

    Raises:
        UsageError: it is no list of ranks, names one without a trace, or too many.
    """
    ordered, found = sorted(there), set()
    parts = text.replace(",", " ").split()
    if not parts:
        raise UsageError("No rank is named; 0-3,17 would be right.")
    for part in parts:
        match = _RANKS.fullmatch(part)
        if match is None:
            raise UsageError(f"{_told(part)}: no rank, and no range of ranks such as 0-3.")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise UsageError(f"{part}: ends before it begins; {last}-{first} would be right.")
        inside = [rank for rank in ordered if first <= rank <= last]
        if len(inside) <= last - first:
            absent = next(n for n in range(first, last + 1) if n not in there)
            have = wording.ranks(tuple(ordered))
            raise UsageError(f"Rank {absent}: no trace has this rank; there are {have}.")
        found.update(inside)
    if len(found) > MOST_RANKS:
        raise UsageError(
            f"{wording.counted(len(found), 'rank')}: the timeline shows {MOST_RANKS} at most; name "
            "fewer."
        )
    return sorted(found)


def _told(part: str) -> str:
    shown = part if len(part) <= _MOST_TOLD else f"{part[:_MOST_TOLD]}..."
    return "".join(one if one.isprintable() else "?" for one in shown)


class OtherRanks:
    """Timelines of the ranks that somebody asks for, one at a time; the last one asked for wins.

    Args:
        traces: rank -> its trace.
        shown: the ranks of the timeline that is there, the most needed first.
        on_event: told in a sentence what is done.
    """

    def __init__(
        self,
        traces: Mapping[int, Path],
        shown: Sequence[int],
        on_event: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self.ranks = sorted(traces)
        self.made: dict[str, ServedFile] = {}
        self.latest: tuple[str, Progress] | None = None
        """Name of the last one that is ready, and where its ranks lie."""
        self.loading: Progress | None = None
        """Of the one that is being made, or cannot be made."""
        self._traces, self._shown, self._on_event = traces, list(shown), on_event
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._new_files: set[Path] = set()

    @property
    def shown(self) -> list[int]:
        """The ranks of the timeline, ascending."""
        return sorted(self._shown)

    def add(self, text: str) -> None:
        """Show these ranks, too, and leave out those that are needed least.

        Raises:
            UsageError: see `named_ranks`.
        """
        named = named_ranks(text, self._traces)
        with self._lock:
            kept = [rank for rank in self._shown if rank not in named]
            self._begin((named + kept)[:MOST_RANKS])

    def show(self, text: str) -> None:
        """Show these ranks and no other.

        Raises:
            UsageError: see `named_ranks`.
        """
        named = named_ranks(text, self._traces)
        with self._lock:
            self._begin(named)

    def stop(self) -> None:
        """Leave what is half done, and remove what was made only for this visit."""
        with self._lock:
            self._stopped.set()
            thread = self._thread
        if thread is not None:
            thread.join(timeout=10)
        for file in self._new_files:
            cache.forget(file)

    def _begin(self, ranks: list[int]) -> None:
        self._stopped.set()
        self._stopped = threading.Event()
        self.loading = Progress(WORKING, f"Making a timeline of {_of(ranks)}.")
        before, stopped = self._thread, self._stopped
        self._thread = threading.Thread(
            target=self._make, args=(ranks, stopped, before), name="other ranks", daemon=True
        )
        self._thread.start()

    def _make(
        self, ranks: list[int], stopped: threading.Event, before: threading.Thread | None
    ) -> None:
        if before is not None:
            before.join()

        def on_progress(done: float) -> None:
            if stopped.is_set():
                raise StoppedError
            told = f"Making a timeline of {_of(ranks)}: {wording.percent(done)} done."
            self._tell(stopped, Progress(WORKING, told))

        traces = [self._traces[rank] for rank in sorted(ranks)]
        try:
            on_progress(0)
            file = cache.timeline_file(traces, whole_folder=False)
            offsets, was_there = cache.converted(file, traces, on_progress)
            if not was_there:
                self._new_files.add(file)
            served = ServedFile(file)
        except StoppedError:
            return
        except Exception as error:
            self._tell(stopped, Progress(FAILED, f"{_of(ranks).capitalize()}: {error}"))
            return
        with self._lock:
            if stopped.is_set():
                return
            name = f"{len(self.made) + 1}.pftrace.gz"
            self.made[name] = served
            self.latest = name, Progress(READY, "The timeline is ready.", offsets)
            self._shown, self.loading = ranks, None
        self._on_event(f"The timeline shows {_of(ranks)}.")

    def _tell(self, stopped: threading.Event, progress: Progress) -> None:
        with self._lock:
            if not stopped.is_set():
                self.loading = progress


def _of(numbers: Sequence[int]) -> str:
    word = "rank" if len(numbers) == 1 else "ranks"
    return f"{word} {wording.ranks(tuple(sorted(numbers)), most=8)}"
