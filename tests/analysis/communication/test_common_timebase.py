# SPDX-License-Identifier: Apache-2.0
"""Ranks on one timeline, with and without base times and clocks that are known."""

from __future__ import annotations

from typing import Any

import pytest

from megatron.torch_trace.analysis.communication import common_timebase as module
from megatron.torch_trace.analysis.communication.clocks import Clock
from megatron.torch_trace.analysis.communication.common_timebase import RankTimes, common_timebase

BASE = 1_790_000_000_000_000_000
CALLS: Any = object()
LEFT = "ranks 0-1 have too few collectives in common with other ranks here, so their clocks were "
LEFT += "left as recorded."


def test_the_first_event_of_all_is_at_zero_and_the_earliest_base_is_that_of_all() -> None:
    found = common_timebase({0: RankTimes(BASE + 100, 0, None), 1: RankTimes(BASE, 50, None)})
    assert (found.base_ns, found.zero_ns, found.epoch_ns) == (BASE, BASE + 50, BASE + 50)
    assert found.absolute_ns == {0: BASE + 100, 1: BASE}
    assert found.offset_ns == {0: 50, 1: -50}
    assert found.notes == (LEFT,)


def test_a_rank_without_a_base_has_that_of_the_others() -> None:
    found = common_timebase({0: RankTimes(BASE, 0, None), 1: RankTimes(0, 70, None)})
    assert (found.base_ns, found.absolute_ns) == (BASE, {0: BASE, 1: BASE})
    missing = "rank 1: the trace has no baseTimeNanoseconds; the one of the other ranks is taken."
    assert found.notes == (missing, LEFT)


def test_absolute_times_need_no_base() -> None:
    times = {0: RankTimes(BASE, 0, None), 1: RankTimes(0, BASE + 30, None)}
    found = common_timebase(times)
    assert (found.absolute_ns, found.notes) == ({0: BASE, 1: 0}, (LEFT,))


def test_a_clock_that_is_known_tells_the_base_too(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = (Clock(0, 0, 0, 3, 0), Clock(1, BASE - 5, 0, 3, 0))
    monkeypatch.setattr(module, "clocks_of", lambda calls: clocks)
    times = {0: RankTimes(BASE, 0, CALLS), 1: RankTimes(0, 10, CALLS)}
    found = common_timebase(times)
    assert (found.absolute_ns, found.notes) == ({0: BASE, 1: BASE - 5}, ())
    left_alone = common_timebase(times, align=False)
    assert left_alone.absolute_ns == {0: BASE, 1: BASE}
    assert left_alone.clock_ns == {0: None, 1: None}


def test_where_no_trace_tells_a_date_there_is_none() -> None:
    found = common_timebase({0: RankTimes(0, 5, None), 1: RankTimes(0, 9, None)})
    assert (found.base_ns, found.zero_ns, found.epoch_ns) == (0, 5, None)


def test_one_rank_alone_has_no_clock_to_speak_of() -> None:
    assert common_timebase({3: RankTimes(BASE, None, None)}).notes == ()
