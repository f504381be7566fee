# SPDX-License-Identifier: Apache-2.0
"""Exports in flight: who writes a trace while training goes on, and what becomes of it.

A thread (`Ending.THREAD`) stops the profiler, saves and frees what it has recorded, in C++ that
lets training run; another process compresses. Where that cannot be, training stops the profiler,
and a forked child (`Ending.FORK`) saves, compresses and renames; training is held for the fork.
The parent keeps Kineto's result until the child has succeeded, because Kineto saves a result only
once per process: the child's save leaves the parent's unused, and if the child is killed the
parent saves it itself.

`--torch-profile-export sync` (`Ending.TRAINING`) is for systems on which forking is unsafe.
Training is held for the raw save; another, not forked process compresses.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from megatron.torch_profile.export import messages
from megatron.torch_profile.export.compression import Written
from megatron.torch_profile.export.disk import with_room
from megatron.torch_profile.export.ending_thread import EndingThread, Recording
from megatron.torch_profile.export.endings import Ending
from megatron.torch_profile.export.flight import Flight
from megatron.torch_profile.export.follow_ups import FollowUps
from megatron.torch_profile.export.limits import MB
from megatron.torch_profile.export.trace_export import Export, let_go
from megatron.torch_profile.export.writers import Program, Writer, fork, save_and_compress
from megatron.torch_profile.plan.trace_size import HELD_MB_PER_TRACE_MB
from megatron.torch_trace.system.freed_memory import give_back
from megatron.torch_trace.system.memory import host_memory

_PROGRESS_SECONDS = 10.0
_POLL_SECONDS = 0.05
_STUCK_SECONDS = 120.0
_ROOM_SECONDS = 30.0


class Beside(Protocol):
    """What is written beside training without the exporter, and ends with it."""

    @property
    def in_flight(self) -> int:
        """Files that are not on disk yet."""

    def wait(self) -> None:
        """Wait for them, within a bound."""


class Exporter:
    """Takes stopped profilers and sees their traces to disk.

    Args:
        exit_timeout: seconds that the end of the process waits for exports.
    """

    def __init__(self, exit_timeout: float) -> None:
        self._exit_timeout = exit_timeout
        self._flights: list[Flight] = []
        self._at_exit: list[Flight] = []
        self._saved: list[Any] = []
        self.last: Written | None = None
        """The newest finished trace, from which the next one's size is estimated."""
        self.last_iterations = 1
        self.hurried = False
        """Whether the process may be killed any moment."""
        self._follow_ups = FollowUps(exit_timeout)
        self._beside: list[Beside] = []
        self._pid = os.getpid()

    @property
    def in_flight(self) -> int:
        """Traces, and what is written beside them, that are not on disk yet."""
        beside = sum(one.in_flight for one in self._beside)
        return len(self._flights) + len(self._at_exit) + beside

    @property
    def at_work(self) -> bool:
        """Whether anything of ours runs beside training."""
        return self.in_flight > 0 or self._follow_ups.running

    def join(self, beside: Beside) -> None:
        """Wait for this, too, at the end of the process."""
        self._beside.append(beside)

    def hurry(self) -> None:
        """The process may be killed any moment: only traces count, not what is made of them."""
        self.hurried = True
        self._follow_ups.abandon()

    def hand_over(
        self,
        profiler: Any,
        export: Export,
        ending: Ending,
        *,
        stop_seconds: float,
        expected_mb: float,
        writers: int,
    ) -> None:
        """Start the export of a stopped profiler, or drop it where it cannot fit the disk.

        Args:
            profiler: a `torch.profiler.profile` whose trace is stopped and not yet saved.
            export: where it goes.
            ending: `FORK` or `TRAINING`.
            stop_seconds: how long Kineto's own stop held training, for the log.
            expected_mb: estimated raw size.
            writers: ranks of this node that write to the same disk.
        """
        forks = ending is Ending.FORK
        try:
            prepared = with_room(export, expected_mb, writers)
        except TimeoutError as error:
            # Whoever writes it may wait for the file system; training may not.
            prepared = replace(export, prepared=False) if forks else None
            messages.silent(export, error, dropped=prepared is None)
        except OSError as error:
            messages.lost(export, "trace", str(error))
            prepared = None
        if prepared is None:
            let_go(profiler)
            return
        export = prepared
        began = time.monotonic()
        process = self._try_to_fork(profiler, export) if forks else None
        if process is None:
            process = _save_here(profiler, export)
            let_go(profiler)
            profiler = None
            give_back()
            if process is None:
                return
        held = time.monotonic() - began
        messages.begun(export, expected_mb if self.last else None, stop_seconds, held)
        self._flights.append(Flight(export, profiler, held + stop_seconds, process, started=began))

    def end_beside(
        self,
        stop: Callable[[], Recording],
        export: Export,
        *,
        waited_seconds: float,
        expected_mb: float,
        writers: int,
    ) -> None:
        """Have a thread stop a profiler and write its trace.

        Args:
            stop: stops it, in whichever thread.
            export: where it goes.
            waited_seconds: how long training has waited for the GPU, for the log.
            expected_mb: estimated raw size.
            writers: ranks of this node that write to the same disk.
        """
        began = time.monotonic()
        thread = EndingThread(stop, export, expected_mb, writers)
        held = time.monotonic() - began
        messages.begun_beside(export, expected_mb if self.last else None, waited_seconds, held)
        self._flights.append(Flight(export, None, held, thread, started=began))

    def free_saved(self) -> None:
        """Free what Kineto holds of traces that are on disk, and give it back to the system: five
        times their size, and about a second for each GB, so not in the middle of an iteration that
        counts."""
        if self._saved:
            while self._saved:
                let_go(self._saved.pop())
            give_back()

    def make_room(self, called_off: Callable[[], bool]) -> None:
        """Before a window: traces that are still being written are held in memory, so give them a
        moment if there is no room for one more. Peers wait too, so only a moment; the window's own
        watch on memory does the rest.

        Args:
            called_off: whether there will be no window after all.
        """
        self.free_saved()
        deadline = time.monotonic() + _ROOM_SECONDS
        if self._flights and self._short_of_memory():
            messages.short_of_memory(self._flights[0].export, _ROOM_SECONDS)
        while self._flights and self._short_of_memory() and time.monotonic() < deadline:
            if called_off():
                return
            time.sleep(_POLL_SECONDS)
            self.poll()

    def _short_of_memory(self) -> bool:
        held = self.last.raw_bytes * HELD_MB_PER_TRACE_MB if self.last else 0
        return host_memory().free < held

    def expected_mb(self, iterations: int) -> float | None:
        """Raw size of a trace of so many iterations, from the last one's; None if it is first."""
        if self.last is None:
            return None
        return self.last.raw_bytes / MB / self.last_iterations * iterations

    def poll(self) -> None:
        """Look after the exports without waiting: called once an iteration."""
        self._follow_ups.poll()
        for flight in list(self._flights):
            ended = flight.process.poll()
            if ended is not None:
                self._flights.remove(flight)
                self._conclude(flight, ended)
            elif time.monotonic() - flight.spoke >= _PROGRESS_SECONDS:
                flight.spoke = time.monotonic()
                messages.progress(flight.export, flight.started, flight.process.written_bytes())
                self._give_up_if_stuck(flight)

    def wait(self, seconds: float | None = None) -> None:
        """Wait for every export, with a word every ten seconds, and give up after the bound.

        Args:
            seconds: the bound; `exit_timeout` if None.
        """
        if os.getpid() != self._pid:  # a fork of training that ends: these are not its children
            return
        bound = self._exit_timeout if seconds is None else seconds
        deadline = time.monotonic() + bound
        while self._at_exit:
            self._save_instead(self._at_exit.pop(), "was stuck")
        if self._flights:
            messages.waits(self._flights[0].export, len(self._flights), bound)
        while any(f.stopping or time.monotonic() < deadline for f in self._flights):
            self.poll()
            time.sleep(_POLL_SECONDS if self._flights else 0)
        for flight in self._flights:
            flight.process.kill()
            messages.given_up(flight.export, bound)
        self._flights.clear()
        for beside in self._beside:
            beside.wait()

    def _try_to_fork(self, profiler: Any, export: Export) -> Writer | None:
        try:
            return fork(profiler, export)
        except OSError as error:  # a process limit, or memory that may not be overcommitted
            messages.saved_by_training(export, f"the system refuses to fork ({error.strerror})")
            return None

    def _give_up_if_stuck(self, flight: Flight) -> None:
        """A child that does not move may wait for a lock that a vanished thread held."""
        if not flight.process.can_be_ended():
            return
        spent, now = flight.process.cpu_seconds(), time.monotonic()
        if spent > flight.pace[0] or not flight.pace[1]:
            flight.pace = (spent, now)
        elif now - flight.pace[1] > _STUCK_SECONDS:
            flight.process.kill()
            self._flights.remove(flight)
            # Not now: a file system that hangs would hang training with it.
            self._at_exit.append(flight)
            messages.stuck(flight.export, _STUCK_SECONDS)

    def _conclude(self, flight: Flight, ended: dict[str, Any]) -> None:
        export = flight.export
        error, died = ended.pop("error", None), ended.pop("died", None)
        if ended:
            self.last = Written(**ended)
            self.last_iterations = max(1, len(export.recorded))
            messages.done(flight.export, self.last, flight.started, flight.held_seconds)
            self._follow_ups.begin(export, self.last)
        if error:
            # Trying again would fail again, and hold training for it.
            messages.lost(export, "trace", error)
        elif died:
            self._save_instead(flight, died)
        if flight.profiler is not None:
            self._saved.append(flight.profiler)
        if self._short_of_memory():
            self.free_saved()

    def _save_instead(self, flight: Flight, how: str) -> None:
        export = flight.export
        if flight.profiler is None:
            messages.left_raw(export, how)
            return
        messages.saved_by_training(export, f"the process that wrote it {how}")
        process = _save_here(flight.profiler, export)
        if process is not None:
            self._flights.append(Flight(export, None, flight.held_seconds, process))


def _save_here(profiler: Any, export: Export) -> Program | None:
    """Save a trace from training, held as long as that takes; a failure is said, and only that."""
    try:
        return save_and_compress(profiler, export)
    except Exception as error:
        messages.lost(export, "trace", str(error) or type(error).__name__)
        return None
