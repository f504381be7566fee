# SPDX-License-Identifier: Apache-2.0
"""Points on CPU threads: launches, waits, steps, and where one thread works for another."""

from __future__ import annotations

from pathlib import Path

from trace_builder import BACKWARD, LOOP, TraceBuilder

from megatron.torch_trace.analysis.replay.kernels.launch_times import launch_times
from megatron.torch_trace.analysis.replay.kernels.thread_points import thread_points

ROLES = ("return", "enter", "first", "mark", "launch", "wait", "last", "leave")
ENGINE = "autograd::engine::evaluate_function: MmBackward0"
STEP = 100_000


def points(trace: TraceBuilder, folder: Path) -> list[tuple[int, int, str]]:
    """Thread, time and role of each point within a step."""
    timeline = trace.step(1, 0, STEP).timeline(folder)
    found = thread_points(timeline, launch_times(timeline))
    threads = [timeline.activity.tracks[code][1] for code in found.track.tolist()]
    roles = [ROLES[role] for role in found.role.tolist()]
    told = zip(threads, found.time.tolist(), roles, strict=True)
    return sorted((int(thread), time, role) for thread, time, role in told)


def on(thread: int, *told: tuple[int, str]) -> list[tuple[int, int, str]]:
    return [(thread, *one) for one in told]


MARKS = on(LOOP, (0, "mark"), (STEP, "mark"))


def test_a_call_that_waits_is_followed_by_its_return_and_one_beyond_the_steps_is_in_no_step(
    tmp_path: Path,
) -> None:
    trace = TraceBuilder(0, 1).gpu("gemm", 20_000, 30_000, launch=10_000)
    trace.call("cudaDeviceSynchronize", 15_000, 34_000)
    trace.call("cudaDeviceSynchronize", 90_000, 110_000)
    assert points(trace, tmp_path) == sorted(
        [*MARKS, *on(LOOP, (10_000, "launch"), (15_000, "wait"), (34_000, "return"))]
    )


def helper(times: list[int], name: str) -> TraceBuilder:
    """Another thread launches at these times, from 45 to 60 us, while the main one is silent."""
    trace = TraceBuilder(0, 1).op("aten::mm", 10_000, 40_000)
    for at in times:
        trace.op(name, at, at + 1_000, tid=BACKWARD)
        trace.gpu("gemm", at + 20_000, at + 21_000, launch=at, tid=BACKWARD)
    return trace.op("aten::add_", 70_000, 80_000)


def test_the_backward_pass_is_a_hand_over_however_little_it_notes(tmp_path: Path) -> None:
    assert points(helper([45_000], ENGINE), tmp_path) == sorted(
        [
            *MARKS,
            *on(LOOP, (40_000, "leave"), (70_000, "enter")),
            *on(BACKWARD, (45_000, "first"), (45_000, "launch"), (46_000, "last")),
        ]
    )


def test_another_thread_works_for_the_main_one_if_it_notes_much_at_once(tmp_path: Path) -> None:
    def handed_over(trace: TraceBuilder, name: str) -> bool:
        return any(role == "leave" for _, _, role in points(trace, tmp_path / name))

    assert handed_over(helper([45_000, 50_000], "aten::copy_"), "much")
    assert not handed_over(helper([45_000], "aten::copy_"), "little")
