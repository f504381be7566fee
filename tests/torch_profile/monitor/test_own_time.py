# SPDX-License-Identifier: Apache-2.0
"""A rank's own time on a GPU: launches that only look like waiting, and sleeps of real ranks."""

from __future__ import annotations

import gzip
from pathlib import Path

from test_monitor import Marks

from megatron.torch_profile.monitor.iterations import measured
from megatron.torch_profile.monitor.iterations.host_side import HostSide, Moment, host_side
from megatron.torch_profile.monitor.iterations.judgement import Judge, SlowRank
from megatron.torch_profile.monitor.iterations.measured import Measured
from megatron.torch_profile.monitor.iterations.own_time import own_times
from megatron.torch_profile.monitor.iterations.parts import PARTS, PAUSE
from megatron.torch_profile.monitor.iterations.phase_clock import PhaseClock

RECORDED = Path(__file__).parents[2] / "data" / "monitor"


def side(
    forward: float, covered: float = 0.0, lead: float = 0.0, lead_part: str = "forward"
) -> HostSide:
    nothing = dict.fromkeys(PARTS, 0.0)
    return HostSide(nothing | {"forward": forward}, nothing | {"forward": covered}, lead, lead_part)


def forwards(*ranks: tuple[float, HostSide | None], usual: float | None = None) -> list[float]:
    """Own time in forward of ranks, each with its GPU's own time and its thread."""
    rows = [Measured(1, False, 50.0, forward=gpu, host=host) for gpu, host in ranks]
    known = None if usual is None else dict.fromkeys(PARTS, 0.0) | {"forward": usual}
    return [one["forward"] for one in own_times(rows, [known] * len(rows))]


def test_a_gpu_that_waits_while_its_own_thread_launches_is_no_faster_for_it() -> None:
    slower, faster = (50.0, side(50)), (15.0, side(49.5, covered=35, lead=2))
    assert forwards(slower, faster) == [50, 47.5], "the lead is what the slower one costs at most"


def test_a_thread_that_waits_for_its_gpu_in_another_part_than_the_one_that_sleeps() -> None:
    sleeps, waits = (28.0, side(28)), (8.0, side(13, covered=3, lead=16, lead_part="backward"))
    assert forwards(sleeps, waits) == [28, 13]


def test_a_thread_that_waits_for_its_gpu_in_the_part_in_which_the_other_one_sleeps() -> None:
    sleeps, waits = (33.0, side(33)), (8.0, side(33, covered=20, lead=17))
    assert forwards(sleeps, waits) == [33, 16], "from the first iteration on"
    assert forwards(sleeps, waits, usual=15) == [33, 15], "it takes 15 ms where nobody sleeps"


def test_a_run_that_is_bound_by_the_gpu_is_judged_by_the_gpu() -> None:
    slow, fast = (100.0, side(100, covered=96, lead=40)), (80.0, side(100, covered=95, lead=60))
    assert forwards(slow, fast) == [100, 80]


def test_without_marks_of_a_gpu_own_time_is_what_was_measured() -> None:
    assert forwards((100.0, None), (80.0, side(100))) == [100, 80]


def test_the_thread_can_have_waited_as_long_as_its_lead() -> None:
    clocks = [(None, 0.0, 7.0), ("forward", 2.0, 9.0), ("forward", 3.0, 19.0)]
    clocks += [("backward", 4.0, 20.0), (None, 90.0, 97.0), ("backward", 91.0, 98.0)]
    found = host_side(Moment(*one) for one in clocks)
    nothing = dict.fromkeys(PARTS, 0.0)
    assert found == HostSide(
        nothing | {"forward": 3.0, "backward": 2.0}, nothing | {"backward": 1.0}, 1.0, "backward"
    ), "the clocks begin 7 ms apart, and the pause of 86 ms does not count"


class TwoClocks(Marks):
    """A thread that the test moves, and a GPU that comes to each mark some ms later."""

    def __init__(self) -> None:
        super().__init__()
        self.lead = 0.0

    def mark(self) -> list[float]:
        return [self.now + self.lead, self.now]

    def made_ms(self, mark: list[float]) -> float:
        return mark[1]


def test_an_iteration_of_a_gpu_tells_what_the_thread_did_in_each_part() -> None:
    marks = TwoClocks()
    clock = PhaseClock(marks)
    clock.begin_step(1)
    clock.begin("forward")
    marks.now, marks.lead = 2, 5  # launches for 2 ms what takes the GPU 7
    clock.begin("waiting")
    marks.now, marks.lead = 3, 14  # the GPU waits for 10 ms, the thread only launches
    clock.end("waiting")
    marks.now, marks.lead = 20, 0  # it needs something of the GPU
    clock.begin(PAUSE)
    marks.now = 90
    clock.end(PAUSE)
    clock.end("forward")
    marks.now = 91
    clock.begin_step(2)
    nothing = dict.fromkeys(PARTS, 0.0)
    thread, covered = nothing | {"forward": 20.0, "other": 1.0}, nothing | {"forward": 15.0}
    (found,) = clock.read()
    assert found == Measured(
        1, False, 21, forward=10, waiting=10, other=1, host=HostSide(thread, covered, 14, "forward")
    ), "in 17 ms of the forward the thread can have waited for 14; the pause does not count"


def test_a_wait_within_a_wait_is_of_the_part_around_both() -> None:
    marks = TwoClocks()
    clock = PhaseClock(marks)
    clock.begin_step(1)
    clock.begin("forward")
    for _ in range(2):
        marks.now += 1
        clock.begin("waiting")
    marks.now = 10
    for kind in ("waiting", "waiting", "forward"):
        clock.end(kind)
    clock.begin_step(2)
    (found,) = clock.read()
    assert found.host is not None
    assert (found.forward, found.waiting, found.host.thread["forward"]) == (1, 9, 10)


SIZES = (0.3, 0.5, 0.75, 1.0)
"""Of an iteration: so long a rank sleeps, three iterations running, every twelfth iteration."""


def sleeps() -> dict[int, tuple[int, str, float]]:
    """First iteration of each sleep: rank, part and size."""
    parts = ("forward", "backward", "optimizer")
    return {
        41 + 12 * at: (at * 3 % 2, parts[at % 3], SIZES[at // 3 % len(SIZES)]) for at in range(20)
    }


def named(recording: str) -> list[SlowRank]:
    """Who is called slow in a recording of two ranks."""
    lines = gzip.decompress((RECORDED / f"{recording}.rows.gz").read_bytes()).splitlines()
    ranks = [measured.parse(line) for line in lines]
    judge = Judge([[0, 1], [0, 1]], in_a_row=2)
    return [
        slow
        for rows in zip(*ranks, strict=True)
        for slow in judge.slow_ranks(judge.judge(rows[0].iteration, dict(enumerate(rows))))
    ]


def test_sleeps_on_two_gpus_are_named_20_of_20_and_nothing_else() -> None:
    found = [(one.since, one.rank, one.part) for one in named("gpu_bound")]
    assert found == [(begin, rank, part) for begin, (rank, part, _) in sleeps().items()]


def test_in_a_run_that_is_bound_by_launches_no_other_rank_and_part_is_named() -> None:
    planned = sleeps()
    found = {
        41 + (one.since - 41) // 12 * 12: (one.rank, one.part) for one in named("launch_bound")
    }
    assert len(found) == 10, "most of the sleeps of 30 % vanish among launches"
    assert found == {begin: planned[begin][:2] for begin in found}
