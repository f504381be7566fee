# SPDX-License-Identifier: Apache-2.0
"""The end of a window that is recorded: its profiler is stopped, and its trace handed over."""

from __future__ import annotations

from collections.abc import Callable

from megatron.torch_profile.export.background import Exporter
from megatron.torch_profile.export.ending_thread import Recording
from megatron.torch_profile.export.trace_export import Export, let_go
from megatron.torch_profile.log import Slug, say
from megatron.torch_profile.plan.capture_plan import CapturePlan
from megatron.torch_profile.plan.schedule import Window
from megatron.torch_profile.record import cuda_graphs, kineto
from megatron.torch_profile.record.open_window import OpenWindow
from megatron.torch_profile.record.other_profilers import OtherProfilers
from megatron.torch_profile.record.stop_place import (
    memory_may_be_refused,
    short_of_files,
    why_training_stops_it,
)

_WAIT_SECONDS = 0.05
_GONE = "something else in this process has ended torch's profiler"


class _UntilSaved:
    """A recording whose profiler counts as ended when it is saved, or given up.

    Args:
        recording: what is saved.
        release: lets another profiler begin.
    """

    recorded = True

    def __init__(self, recording: Recording, release: Callable[[], None]) -> None:
        self._recording = recording
        self._release = release

    def save(self, path: str) -> None:
        self._recording.save(path)

    def free(self) -> None:
        try:
            self._recording.free()
        finally:
            self._release()


class WindowEnds:
    """Ends the windows of one rank, beside training where torch allows that.

    Args:
        plan: what is recorded.
        exporter: takes the traces.
        others: profilers that are not ours, and wait for the end of ours.
    """

    def __init__(self, plan: CapturePlan, exporter: Exporter, others: OtherProfilers) -> None:
        self._plan = plan
        self._exporter = exporter
        self._others = others
        self._beside: bool | None = None

    @property
    def beside(self) -> bool:
        """Whether profilers are stopped beside training; where not, the log says why, once."""
        if self._beside and cuda_graphs.in_use():
            self._beside = None
        if self._beside is None:
            why = why_training_stops_it(self._plan.config)
            self._beside = why is None
            if why and self._plan.config.export != "sync":
                say(
                    Slug.STOP_HOLDS,
                    "rank %d: training is held while the profiler stops: %s",
                    self._plan.topology.rank,
                    why,
                )
        return self._beside

    def in_the_way(self, window: Window, iteration: int, called_off: Callable[[], bool]) -> bool:
        """Whether the profiler of an earlier window still ends, and this one can wait for that.

        It ends when its trace is saved: Kineto works out the times of GPU rows while it saves, with
        a clock that the next profiler sets anew. Seen: rows 58 days off.


        One that can wait no longer has training wait.

        Args:
            window: which is to be recorded.
            iteration: which begins.
            called_off: whether there will be no window after all.
        """
        if not self._others.ending:
            return False
        if iteration < window.first - 1:
            return True
        say(
            Slug.WINDOW_WAITS,
            "rank %d waits for the last window, whose trace is not saved yet, before it records "
            "iterations %s",
            self._plan.topology.rank,
            window,
        )
        while not self._others.wait(_WAIT_SECONDS):
            if called_off():
                return True
        return False

    def end(self, window: OpenWindow, following: Window | None, *, cut: bool) -> str | None:
        """Stop a window's profiler and hand its trace over.

        Args:
            window: which has recorded something.
            following: the next one.
            cut: it ends in the middle of an iteration.

        Returns:
            Why its trace is lost, or None.
        """
        expected = window.estimated_mb()
        export = Export.of(self._plan, window.window, window.recorded, self._exporter.hurried, cut)
        # A limit may have been set, and a graph captured, since the window began.
        refused = memory_may_be_refused() or short_of_files() or cuda_graphs.in_use()
        if window.beside and not refused:
            return self._end_beside(window, following, export, expected)
        stop_seconds = window.stop(following)
        self._others.release()
        if not kineto.has_result(window.profiler):
            let_go(window.profiler)
            return _GONE
        self._exporter.hand_over(
            window.profiler,
            export,
            stop_seconds=stop_seconds,
            expected_mb=expected,
            writers=self._plan.writers_here,
        )
        return None

    def _end_beside(
        self, window: OpenWindow, following: Window | None, export: Export, expected: float
    ) -> str | None:
        ended = window.end_beside(following)
        if ended is None:
            self._others.release()
            return _GONE
        end, waited = ended
        stopped: list[bool] = []

        def stop() -> Recording:
            stopped.append(True)
            try:
                recording = end()
            except BaseException:
                self._others.release()
                raise
            if not recording.recorded:
                self._others.release()
                return recording
            return _UntilSaved(recording, self._others.release)

        self._others.ending = True
        try:
            self._exporter.end_beside(
                stop,
                export,
                waited_seconds=waited,
                expected_mb=expected,
                writers=self._plan.writers_here,
            )
        except BaseException:
            if not stopped:  # nobody else would, and it would record for ever
                stop().free()
            raise
        return None
