# SPDX-License-Identifier: Apache-2.0
"""What a rank does with an agreed window, moment by moment: when it is late, when it is over."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gates import MINUTES
from test_requests import plan_of

from megatron.torch_profile.exits import not_at_exit
from megatron.torch_profile.monitor import lifetime
from megatron.torch_profile.monitor.agreement import Agreed
from megatron.torch_profile.monitor.channel import OneProcess
from megatron.torch_profile.monitor.requested_steps import RequestedSteps
from megatron.torch_profile.plan.schedule import Window

AGREED = Agreed("a", 5, 6, 2, (0,), None, with_stack=False)
"""Its profiler warms up in iterations 3 and 4."""


class Rank:
    """Rank 0, whose recorder only notes the windows that it is given."""

    def __init__(self, folder: Path) -> None:
        self.plan, self.channel = plan_of(folder, iterations=["900"]), OneProcess()
        self.windows: list[Window] = []
        self.exporter = SimpleNamespace(in_flight=0)
        recorder: Any = SimpleNamespace(
            begin_step=lambda iteration: None,
            add=lambda requested: self.windows.append(requested.window),
            close=lambda **_: None,
            exporter=self.exporter,
        )
        self.steps = RequestedSteps(recorder, self.plan, self.channel)
        self.channel.set("agreed/0", AGREED.as_text())

    @property
    def told(self) -> bytes | None:
        """What it has told rank 0 by now."""
        self.steps.look()
        return self.channel.get("told/0/0") if self.channel.check(["told/0/0"]) else None

    def save(self, *, partial: bool) -> None:
        folder = self.plan.window_folder(AGREED.window)
        folder.mkdir()
        (folder / str(self.plan.trace_name(partial=partial))).touch()


@pytest.mark.parametrize(
    ("learned_before", "windows", "told"), [(3, [AGREED.window], None), (4, [], b"late")]
)
def test_a_rank_that_learns_before_the_warm_up_records_and_one_that_learns_later_is_late(
    tmp_path: Path, learned_before: int, windows: list[Window], told: bytes | None
) -> None:
    rank = Rank(tmp_path)
    rank.steps.look()
    rank.steps.begin_step(learned_before)
    assert (rank.windows, rank.told) == (windows, told)


def test_a_window_without_a_trace_is_told_when_it_is_over_and_nothing_is_in_flight(
    tmp_path: Path,
) -> None:
    rank = Rank(tmp_path)
    rank.steps.look()
    rank.exporter.in_flight = 1
    told = []
    for iteration in (3, 6, 7):
        rank.steps.begin_step(iteration)
        told.append(rank.told)
    rank.exporter.in_flight = 0
    assert [*told, rank.told] == [None, None, None, b"no trace"]


def test_while_its_last_iteration_runs_a_window_is_not_over(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    rank.steps.look()
    rank.steps.begin_step(3)
    rank.steps.begin_step(6)
    assert rank.told is None
    rank.steps.close()
    assert rank.told == b"no trace"


@pytest.mark.parametrize("partial", [False, True])
def test_a_trace_of_a_part_of_the_window_is_a_trace(tmp_path: Path, partial: bool) -> None:
    rank = Rank(tmp_path)
    rank.steps.look()
    rank.steps.begin_step(3)
    rank.save(partial=partial)
    rank.steps.begin_step(7)
    assert rank.told == b"recorded"


def test_where_the_thread_that_takes_requests_fails_one_line_says_so_and_training_goes_on(
    tmp_path: Path, warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = Rank(tmp_path)

    def fails() -> None:
        raise RuntimeError("the store is gone")

    monkeypatch.setattr(rank.steps, "look", fails)
    monkeypatch.setattr(rank.steps.recorder, "rank", 3, raising=False)
    monkeypatch.setattr(lifetime, "LOOK_SECONDS", 0.01)
    watch = lifetime.Watch(rank.steps, None, rank.channel, by_signal=False)
    watch.start()
    watch._thread.join(MINUTES)
    assert not watch._thread.is_alive()
    assert warned == [
        "rank 3 takes no requests any more, training goes on: RuntimeError: the store is gone"
    ]
    rank.steps.begin_step(3)
    not_at_exit(watch.at_exit)
