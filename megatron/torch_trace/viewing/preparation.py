# SPDX-License-Identifier: Apache-2.0
"""Analysis and conversion in the background, so that the page opens at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from megatron.torch_trace import wording
from megatron.torch_trace.errors import TorchTraceError
from megatron.torch_trace.viewing import cache, timeline_ranks
from megatron.torch_trace.viewing.other_ranks import OtherRanks
from megatron.torch_trace.viewing.progress import FAILED, READY, WORKING, StoppedError
from megatron.torch_trace.viewing.progress import Progress as Progress
from megatron.torch_trace.viewing.served_file import ServedFile

if TYPE_CHECKING:
    from megatron.torch_trace.analysis.results.analysis import Analysis
    from megatron.torch_trace.report.html import ViewLinks

_TIMELINES = (".pftrace", ".pftrace.gz", ".perfetto-trace")

_GONE = "The traces are gone, so there is no timeline; the report is of their kept analyses."


def is_timeline(traces: Sequence[Path]) -> bool:
    """Whether the only one of them is a timeline already, such as `torch-trace convert` writes."""
    return len(traces) == 1 and traces[0].name.endswith(_TIMELINES)


class Preparation:
    """Makes the report and the timeline of some traces, one after the other.

    Args:
        traces: of one window.
        whole_folder: see `cache.timeline_file`.
        links: for the report's page; None for a report without a timeline in it.
        timeline_first: convert before analysing.
        chooses: of very many ranks, which ones the timeline shows; see `timeline_ranks`.
        on_event: told in a sentence what is done.
    """

    def __init__(
        self,
        traces: Sequence[Path],
        *,
        whole_folder: bool,
        links: ViewLinks | None,
        timeline_first: bool = False,
        chooses: bool = False,
        on_event: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self.traces = list(traces)
        there = [trace for trace in self.traces if trace.exists()]
        self._converted = there
        self._chooses = chooses and len(there) > timeline_ranks.MOST_RANKS
        self.file = cache.timeline_file(there or self.traces, whole_folder=whole_folder)
        self._analysis: Analysis | None = None
        self.report = ""
        self.reporting = Progress(WORKING, "Waiting for the timeline to be made.")
        self.timeline = Progress(WORKING, "The report is made first.")
        self.timeline_done = threading.Event()
        self.others: OtherRanks | None = None
        self._served: ServedFile | None = None
        self._links = links
        self._on_event = on_event
        self._stopped = threading.Event()
        work = [self._analyse, self._convert]
        self._work = work[::-1] if timeline_first else work
        self._thread = threading.Thread(target=self._run, name="preparation", daemon=True)

    def start(self) -> None:
        """Begin; a timeline that was kept is ready at once."""
        offsets = None
        if not self._chooses:
            offsets = cache.cached_offsets(self.file, self._converted)
        if is_timeline(self.traces):
            self.reporting = Progress(
                FAILED, f"{self.traces[0]}: is a timeline, and a report needs traces."
            )
            self._show_as_it_is("a timeline")
            return
        if offsets is not None:
            self._finished(Progress(READY, "The timeline is ready, kept from before.", offsets))
        self._thread.start()

    def wait_for_timeline(self) -> None:
        """Until the timeline is made.

        Raises:
            TorchTraceError: it cannot be made.
        """
        self.timeline_done.wait()
        if self.timeline.state == FAILED:
            raise TorchTraceError(self.timeline.message)

    @property
    def served(self) -> ServedFile:
        """The timeline as it was when it was ready.

        Raises:
            OSError: it is not there.
        """
        if self._served is None:
            self._served = ServedFile(self.file)
        return self._served

    def stop(self) -> None:
        """Leave what is half done, and wait a moment until it is cleaned up."""
        self._stopped.set()
        if self.others is not None:
            self.others.stop()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def _run(self) -> None:
        for work in self._work:
            if not self._stopped.is_set():
                work()

    def _analyse(self) -> None:
        from megatron.torch_trace.allocator.ranks.analysed import analysed_with_memory
        from megatron.torch_trace.report.html import render_html

        count, done = len(self.traces), 0
        self.reporting = Progress(WORKING, f"Analysing {wording.counted(count, 'trace')}.")

        def on_done(file: Path) -> None:
            nonlocal done
            done += 1
            self.reporting = Progress(
                WORKING, f"Analysing: {done} of {wording.counted(count, 'trace')} done."
            )

        try:
            analysis, memory = analysed_with_memory(self.traces, gains=None, on_done=on_done)
            self._analysis = analysis
            self.report = render_html(analysis, view=self._links, memory=memory)
        except TorchTraceError as error:
            self.reporting = Progress(FAILED, str(error))
        except Exception as error:
            self.reporting = Progress(FAILED, f"{type(error).__name__}: {error}")
        else:
            self.reporting = Progress(READY, "The report is ready.")
        self._on_event(self.reporting.message)

    def _convert(self) -> None:
        if self.timeline_done.is_set():
            return

        if not self._converted:
            self._finished(Progress(FAILED, _GONE))
            return
        if self._chooses:
            self._converted = timeline_ranks.chosen(self._converted, self._analysis)
            self.file = cache.timeline_file(self._converted, whole_folder=False)
        self.timeline = Progress(WORKING, "Converting the traces into a timeline.")

        def on_progress(done: float) -> None:
            if self._stopped.is_set():
                raise StoppedError
            self.timeline = Progress(
                WORKING, f"Converting the traces: {wording.percent(done)} done."
            )

        try:
            offsets, was_kept = cache.converted(self.file, self._converted, on_progress)
            if self._chooses:
                self._offer_others(offsets)
        except StoppedError:
            return
        except TorchTraceError as error:
            if len(self.traces) == 1 and _is_merged(self.traces[0]):
                self._show_as_it_is("merged already")
            else:
                self._finished(Progress(FAILED, str(error)))
        except Exception as error:
            self._finished(Progress(FAILED, f"{type(error).__name__}: {error}"))
        else:
            size = wording.size(self.file.stat().st_size)
            made = f"The timeline is ready: {size}."
            said = "The timeline is ready, kept from before." if was_kept else made
            self._finished(Progress(READY, said, offsets))

    def _offer_others(self, offset_ns: Mapping[int, int]) -> None:
        there = [trace for trace in self.traces if trace.exists()]
        traces = timeline_ranks.by_rank(there, self._analysis)
        needed = timeline_ranks.needed(traces, self._analysis)
        self.others = OtherRanks(
            traces, [rank for rank in needed if rank in offset_ns], self._on_event
        )
        self._on_event(timeline_ranks.sentence(sorted(offset_ns), len(self.traces)))

    def _show_as_it_is(self, why: str) -> None:
        """The only trace was made for Perfetto, which tells by the content what it is."""
        self.file = self.traces[0]
        self._finished(Progress(READY, f"{self.file}: {why}, shown as it is."))

    def _finished(self, progress: Progress) -> None:
        if progress.state == READY:
            try:
                self._served = ServedFile(self.file)
            except OSError as error:
                progress = Progress(FAILED, f"{self.file}: cannot be read ({error}).")
        self.timeline = progress
        self.timeline_done.set()
        self._on_event(progress.message)


def _is_merged(trace: Path) -> bool:
    from megatron.torch_trace.files.sources import read_metadata

    try:
        return read_metadata(trace).merged is not None
    except TorchTraceError:
        return False
