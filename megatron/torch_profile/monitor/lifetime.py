# SPDX-License-Identifier: Apache-2.0
"""Requests of the training that runs now: begun where Megatron's `train` begins."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from types import FrameType
from typing import Any

from megatron.torch_profile.exits import at_exit
from megatron.torch_profile.followers import followers
from megatron.torch_profile.guard import Guard
from megatron.torch_profile.log import Slug, warn
from megatron.torch_profile.monitor.channel import Channel, open_channel
from megatron.torch_profile.monitor.desk import SIGNALS, Desk
from megatron.torch_profile.monitor.requested_steps import RequestedSteps
from megatron.torch_profile.plan.capture_plan import CapturePlan
from megatron.torch_profile.record.recorder import Recorder

LOOK_SECONDS = 2.0
_END_SECONDS = 15.0
"""How long the end of the process waits for the thread, which may wait for a store."""


class Watch:
    """The thread of one rank, and the signal that asks it.

    Args:
        steps: of this rank.
        desk: on rank 0.
        channel: between the ranks.
        by_signal: SIGUSR2 asks too.
    """

    def __init__(
        self, steps: RequestedSteps, desk: Desk | None, channel: Channel, *, by_signal: bool
    ) -> None:
        self._steps = steps
        self._desk = desk
        self._channel = channel
        self._by_signal = by_signal
        self._signals = 0
        self._before: Any = None
        self._pid = os.getpid()
        self._stop = threading.Event()
        lost = f"rank {steps.recorder.rank} takes no requests any more, training goes on"
        self._guard = Guard(Slug.REQUESTS_FAILED, lost)
        self._thread = threading.Thread(target=self._run, name="torch-profile-requests")
        self._thread.daemon = True

    def start(self) -> None:
        """From now on requests are taken."""
        at_exit(self.at_exit)  # after the recorder's, so called before it
        if self._by_signal and threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGUSR2, self._handle)
        self._thread.start()

    def at_exit(self) -> None:
        """No thread may be in C++ when Python ends; rank 0 answers what it can."""
        if os.getpid() != self._pid:
            return
        self._steps.recorder.wait_at_exit()
        self._stop.set()
        self._thread.join(_END_SECONDS)
        if not self._thread.is_alive() and not self._guard.failed:
            with suppress(Exception):  # the store may be gone, with the rank that held it
                self._look()
                if self._desk is not None:
                    self._desk.end()
        self._give_signal_back()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_SECONDS) and not self._guard.failed:
            if self._steps.closed:
                with suppress(Exception):
                    self._look()
                if not (self._steps.busy or (self._desk is not None and self._desk.busy)):
                    return
            else:
                self._guard(self._look)

    def _look(self) -> None:
        signals, self._signals = self._signals, 0
        if signals:
            self._channel.add(SIGNALS, 1)
        closed = self._steps.closed
        if self._desk is not None:
            self._desk.look(self._steps.progress, closed=closed)
        self._steps.look()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1  # the thread asks: nothing of it in training
        if callable(self._before):
            self._before(number, frame)

    def _give_signal_back(self) -> None:
        if self._before is not None and signal.getsignal(signal.SIGUSR2) == self._handle:
            signal.signal(signal.SIGUSR2, self._before)


def begin(capture: CapturePlan) -> None:
    """Take requests from now on, until the session closes whoever follows the steps.

    Args:
        capture: what is recorded; its flags ask for triggers.
    """
    recorder = followers.steps
    try:
        if isinstance(recorder, Recorder):
            followers.steps = followed(recorder, capture)
    except Exception as error:
        # Nobody waits for this rank: rank 0 says of which ranks it did not hear.
        warn(
            Slug.REQUESTS_FAILED,
            "rank %d trains without windows on request: %s: %s",
            capture.topology.rank,
            type(error).__name__,
            error,
        )


def followed(recorder: Recorder, capture: CapturePlan) -> RequestedSteps:
    """The steps of a recorder that takes requests too, from now on."""
    channel = open_channel(capture.run_folder.name)
    steps = RequestedSteps(recorder, capture, channel)
    desk = Desk(capture, channel) if capture.topology.rank == 0 else None
    if desk is not None:
        steps.ask = desk.ask
    by_signal = "signal" in (capture.config.trigger or ())
    Watch(steps, desk, channel, by_signal=by_signal).start()
    return steps
