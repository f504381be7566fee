# SPDX-License-Identifier: Apache-2.0
"""Notices that no iteration ends, and writes down where this rank is: once for each hang.

A thread looks at a clock now and then. It never touches the GPU and calls no collective, so it ends
no hang and makes none.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from megatron.torch_profile.log import Slug, warn
from megatron.torch_profile.monitor.hangs.flight_entries import flight_entries
from megatron.torch_profile.monitor.hangs.locked_stacks import LockedStacks
from megatron.torch_profile.monitor.hangs.stacks import (
    micro_batch,
    module_paths,
    open_modules,
    thread_stacks,
)
from megatron.torch_profile.monitor.hangs.watchdog import pending_seconds, watchdog_seconds
from megatron.torch_profile.monitor.heartbeat import Heartbeat
from megatron.torch_profile.plan.topology import Topology
from megatron.torch_trace.files.atomic import atomic_path
from megatron.torch_trace.format.hang_records import (
    FLIGHT_SUFFIX,
    HANG_SUFFIX,
    HANGS,
    HangName,
    HangRecord,
    locked_name,
)
from megatron.torch_trace.system.patience import joined
from megatron.torch_trace.wording import path_text, seconds

_LOOKS = 10
"""How often the thread looks within the time that is given."""
_LONGEST_LOOK = 5.0
_MOST_HANGS = 100
_END_SECONDS = 2.0
"""How long the end of training waits for the thread, which may be about to say something."""


class HangWatch:
    """The thread of one rank.

    Args:
        limit: seconds without the end of an iteration.
        run: folder of the run.
        topology: of the job.
        heartbeat: of the training loop.
        model: Megatron's list of model chunks, for names of modules.
        open_spans: names that are open in a window, the outermost first.
        last_iterations: what a monitor has measured of the last ones.
    """

    def __init__(
        self,
        limit: float,
        run: Path,
        topology: Topology,
        heartbeat: Heartbeat,
        model: Any = None,
        open_spans: Callable[[], tuple[str, ...]] = tuple,
        last_iterations: Callable[[], tuple[dict[str, Any], ...]] = tuple,
    ) -> None:
        self._limit = limit
        self._folder = run / HANGS
        self._run = run
        self._topology = topology
        self._heartbeat = heartbeat
        self._model = model
        self._open_spans = open_spans
        self._last_iterations = last_iterations
        self._device = _device()
        self._watchdog = watchdog_seconds()
        me, ranks = topology.rank, topology.layout.world_size
        self._locked = LockedStacks(self._folder / locked_name(me, ranks), limit, me)
        self._told_ns: int | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="torch-profile-hangs", daemon=True)

    def start(self) -> None:
        """From now on."""
        self._locked.renew()
        self._thread.start()

    def stop(self) -> None:
        """Training has ended."""
        self._stop.set()
        self._model = None
        if self._thread.is_alive():
            joined(self._thread, _END_SECONDS)
        self._locked.stop()

    def _watch(self) -> None:
        while not self._stop.wait(min(self._limit / _LOOKS, _LONGEST_LOOK)):
            self._locked.renew()
            self.look(time.monotonic_ns())

    def look(self, now_ns: int) -> None:
        """Write a record if it is time.

        Args:
            now_ns: of `time.monotonic_ns`.
        """
        paused = self._heartbeat.paused
        since_ns = self._heartbeat.since_ns if paused is None else self._heartbeat.paused_ns
        waited_ns = now_ns - since_ns
        if since_ns == self._told_ns or not self._hangs(waited_ns / 1e9, paused):
            return
        self._told_ns = since_ns
        try:
            path, record = self._write(time.time_ns(), waited_ns)
        except Exception as error:
            why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            warn(Slug.HANG, "rank %d left no hang record: %s", self._topology.rank, why)
        else:
            warn(
                Slug.HANG,
                "rank %d: no %s has ended for %s (iteration %d): %s; torch-trace hang %s "
                "joins the records of all ranks",
                self._topology.rank,
                paused or "iteration",
                seconds(min(self._limit, waited_ns / 1e9)),
                record.iteration,  # training may have gone on meanwhile
                path.name,
                path_text(self._run),
            )

    def _hangs(self, waited: float, paused: str | None) -> bool:
        """Whether it is time, so many seconds after the iteration or the pause has begun."""
        if paused is None and waited >= self._limit:
            return True
        # In time before the watchdog ends the process, in evaluation and checkpoints too.
        return waited >= self._watchdog and pending_seconds(self._device) >= self._watchdog

    def _write(self, written_ns: int, waited_ns: int) -> tuple[Path, HangRecord]:
        record = self._record(written_ns, waited_ns)
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._place(record)
        # The stacks first: torch may not answer.
        entries = flight_entries(self._device)
        if entries is not None:
            name = path.name.removesuffix(HANG_SUFFIX) + FLIGHT_SUFFIX
            with atomic_path(path.with_name(name), replace=False) as unfinished:
                unfinished.write_bytes(entries)
        return path, record

    def _place(self, record: HangRecord) -> Path:
        text = record.as_text()
        for number in range(1, _MOST_HANGS):
            name = HangName(record.rank, record.iteration, number, record.world_size)
            path = self._folder / f"{name.stem}{HANG_SUFFIX}"
            try:
                with atomic_path(path, replace=False) as unfinished:
                    unfinished.write_text(text)
            except FileExistsError:
                continue
            return path
        raise FileExistsError(f"{_MOST_HANGS} records of this iteration are there")

    def _record(self, written_ns: int, waited_ns: int) -> HangRecord:
        me, heartbeat = self._topology.me, self._heartbeat
        logged = heartbeat.logged or (None, None)
        paths = module_paths(self._model) if self._model is not None else {}
        return HangRecord(
            rank=me.rank,
            world_size=self._topology.layout.world_size,
            host=me.host,
            pid=me.pid,
            iteration=heartbeat.iteration,
            seconds=self._limit,
            written_ns=written_ns,
            began_ns=written_ns - waited_ns,
            logged_iteration=logged[0],
            logged_ns=logged[1],
            spans=self._open_spans(),
            modules=open_modules(heartbeat.thread, paths),
            micro_batch=micro_batch(heartbeat.thread),
            threads=thread_stacks(heartbeat.thread, frozenset([threading.get_ident()])),
            iterations=self._last_iterations(),
        )


def _device() -> int | None:
    """The GPU of the thread that trains; None where there is none."""
    import torch

    return torch.cuda.current_device() if torch.cuda.is_initialized() else None
