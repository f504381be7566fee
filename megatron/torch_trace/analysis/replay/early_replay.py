# SPDX-License-Identifier: Apache-2.0
"""A replay that a thread makes while the same ranks are analysed.

    this thread   read ... analyse the last rank ... together ... [replay] gains
    another                make the replay .................

Most of both is numpy at work on whole columns, without Python's lock: with two cores at hand an
analysis with gains takes a tenth less time.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from megatron.torch_trace.analysis.replay.recorded_ranks import replayable
from megatron.torch_trace.analysis.replay.replay import Replay
from megatron.torch_trace.analysis.timeline.timeline import Timeline
from megatron.torch_trace.files.sources import rank_of


class EarlyReplay:
    """Not begun, being made, or made."""

    def __init__(self) -> None:
        self._timelines: dict[int, Timeline] = {}
        self._thread: threading.Thread | None = None
        self._made: Replay | None = None
        self._error: BaseException | None = None

    def begin(self, timelines: Mapping[Path, Timeline]) -> None:
        """Make the replay of these traces, if each tells its rank and can be replayed."""
        by_rank = {
            rank_of(timeline.activity.metadata, file): replayable(timeline)
            for file, timeline in timelines.items()
        }
        found = {
            rank: one
            for rank, one in by_rank.items()
            if rank is not None and isinstance(one, Timeline)
        }
        if len(found) < len(timelines):
            return
        thread = threading.Thread(target=self._make, args=(found,), name="replay", daemon=True)
        # A limit on processes: whoever asks makes it.
        with suppress(RuntimeError):
            thread.start()
            self._timelines, self._thread = found, thread

    def of(self, timelines: Mapping[int, Timeline]) -> Replay:
        """The replay of these ranks, whether it was begun or not.

        Raises:
            Exception: what making it raised.
        """
        if self._thread is None or not _are_same(timelines, self._timelines):
            return Replay(timelines)
        self._thread.join()
        if self._error:
            raise self._error
        assert self._made is not None
        return self._made

    def _make(self, timelines: Mapping[int, Timeline]) -> None:
        try:
            self._made = Replay(timelines)
        except BaseException as error:
            self._error = error


def _are_same(some: Mapping[int, Timeline], others: Mapping[int, Timeline]) -> bool:
    return some.keys() == others.keys() and all(some[rank] is others[rank] for rank in some)
