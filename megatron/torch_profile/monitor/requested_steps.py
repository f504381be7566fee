# SPDX-License-Identifier: Apache-2.0
"""Requested windows on one rank: a thread learns of them, and training takes them over.

Training looks at one attribute an iteration. Everything else is the thread's: it asks the channel,
looks for the finished trace, and tells rank 0 what became of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from megatron.torch_profile.followers import followers
from megatron.torch_profile.log import Slug, warn
from megatron.torch_profile.monitor.agreement import Agreed
from megatron.torch_profile.monitor.channel import Channel
from megatron.torch_profile.plan.capture_plan import CapturePlan
from megatron.torch_profile.record.recorder import Recorder
from megatron.torch_trace.format.requests import Request
from megatron.torch_trace.wording import iterations

RECORDED, LATE, NO_TRACE = "recorded", "late", "no trace"


class RequestedSteps:
    """Follows the steps of training in place of the recorder, and hands them on to it.

    Args:
        recorder: who records.
        plan: of this run.
        channel: between the ranks.
    """

    def __init__(self, recorder: Recorder, plan: CapturePlan, channel: Channel) -> None:
        self.recorder = recorder
        self.ask: Callable[[str, Request], None] | None = None
        """On rank 0: ask for a window from within training; any thread may."""
        self.progress = 0
        self.closed = False
        self._plan = plan
        self._channel = channel
        self._arrived: deque[Agreed] = deque()
        self._late: set[str] = set()
        self._learned = 0
        self._untold: list[tuple[int, Agreed]] = []

    def begin_step(self, iteration: int) -> None:
        """An iteration begins."""
        if self._arrived:
            self._take(iteration)
        self.recorder.begin_step(iteration)
        self.progress = iteration

    def end_step(self) -> None:
        """An iteration has ended, and the next one has not begun."""
        self.recorder.end_step()

    def begin_pause(self) -> None:
        """Evaluation or a checkpoint begins."""
        self.recorder.begin_pause()

    def close(self, *, after_failure: bool = False) -> None:
        """Training ends."""
        self.recorder.close(after_failure=after_failure)
        self.closed = True

    @property
    def busy(self) -> bool:
        """Whether rank 0 does not know yet what became of a window."""
        return bool(self._untold)

    def look(self) -> None:
        """Learn of new windows, and tell of those that are over. Called by the thread."""
        while self._channel.check([f"agreed/{self._learned}"]):
            agreed = Agreed.parse(self._channel.get(f"agreed/{self._learned}"))
            if self._plan.topology.rank in agreed.ranks:
                self._untold.append((self._learned, agreed))
            self._arrived.append(agreed)
            self._learned += 1
        for number, agreed in list(self._untold):
            outcome = self._outcome(agreed)
            if outcome:
                self._channel.set(f"told/{number}/{self._plan.topology.rank}", outcome)
                self._channel.add(f"told/{number}", 1)
                self._untold.remove((number, agreed))

    def _take(self, iteration: int) -> None:
        while self._arrived:
            agreed = self._arrived.popleft()
            if followers.results is not None:
                followers.results.add(agreed.window, agreed.ranks)
            if followers.metrics is not None:
                followers.metrics.add_window(agreed.window)
            if self._plan.topology.rank not in agreed.ranks:
                continue
            if iteration > agreed.first - agreed.warmup:
                self._late.add(agreed.request)
                warn(
                    Slug.REQUEST,
                    "rank %d learned of request %s too late to record %s",
                    self._plan.topology.rank,
                    agreed.request,
                    iterations(agreed.window),
                )
            else:
                self.recorder.add(agreed.requested(self._plan.config))

    def _outcome(self, agreed: Agreed) -> str | None:
        """None as long as it is not known."""
        if agreed.request in self._late:
            return LATE
        over = self.closed or self.progress > agreed.last
        if not over:
            return None
        in_flight = self.recorder.exporter.in_flight  # before the look: it lands meanwhile
        folder = self._plan.window_folder(agreed.window)
        for partial in (False, True):
            if (folder / str(self._plan.trace_name(partial=partial))).exists():
                return RECORDED
        return None if in_flight else NO_TRACE
