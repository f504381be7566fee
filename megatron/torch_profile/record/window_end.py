# SPDX-License-Identifier: Apache-2.0
"""The end of a window that is recorded: its profiler is stopped, and its trace handed over."""

from __future__ import annotations

from collections.abc import Callable

from megatron.torch_profile.export.background import Exporter
from megatron.torch_profile.export.ending_thread import Recording
from megatron.torch_profile.export.trace_export import Export, let_go
from megatron.torch_profile.hooks import cuda_graphs
from megatron.torch_profile.log import Slug, say, warn
from megatron.torch_profile.plan.capture_plan import CapturePlan
from megatron.torch_profile.plan.schedule import Window
from megatron.torch_profile.record import kineto
from megatron.torch_profile.record.open_window import OpenWindow
from megatron.torch_profile.record.other_profilers import OtherProfilers
from megatron.torch_profile.record.stop_decision import Circumstances, Decision, decide
from megatron.torch_trace.wording import iterations, ranks

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
        self._said: set[str] = set()

    def decide(self, window: OpenWindow | None = None) -> Decision:
        """Who stops a window's profiler and writes its trace; a new reason to hold training is
        said, once.

        Args:
            window: which is about to end; None for one that is about to be prepared.
        """
        before = None if window is None else window.decision
        decision = decide(self._plan.config, Circumstances.now(), before)
        if decision.why and decision.why not in self._said:
            self._said.add(decision.why)
            say(
                Slug.STOP_HOLDS,
                "rank %d: training is held while the profiler stops: %s",
                self._plan.topology.rank,
                decision.why,
            )
        return decision

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
            "rank %d waits for the last window, whose trace is not saved yet, before it records %s",
            self._plan.topology.rank,
            iterations(window),
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
        ending = self.decide(window).ending
        if ending.beside:
            return self._end_beside(window, following, export, expected)
        stop_seconds = window.stop(following)
        self._others.release()
        if not kineto.has_result(window.profiler):
            let_go(window.profiler)
            return _GONE
        self._exporter.hand_over(
            window.profiler,
            export,
            ending,
            stop_seconds=stop_seconds,
            expected_mb=expected,
            writers=self._plan.writers_here,
        )
        return None

    def say_if_short(self, window: OpenWindow, *, cut: bool) -> None:
        """Warn of a window that has ended and lacks iterations.

        Args:
            window: whose trace is on its way.
            cut: it ended in the middle of an iteration.
        """
        if cut or not window.whole:
            warn(
                Slug.WINDOW_SHORT,
                "rank %d has only %s of the window of %s%s",
                self._plan.topology.rank,
                iterations(ranks(tuple(window.recorded))),
                iterations(window.window),
                " (the last in part)" if cut else "",
            )

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
            finally:
                cuda_graphs.stop_ends()
            if not recording.recorded:
                self._others.release()
                return recording
            return _UntilSaved(recording, self._others.release)

        self._others.ending = True
        cuda_graphs.stop_begins()
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
