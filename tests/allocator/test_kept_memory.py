# SPDX-License-Identifier: Apache-2.0
"""What stays from step to step, what lies free beside it, and when most was in use."""

from __future__ import annotations

from pathlib import Path

import pytest
from snapshot_builder import MIB, SnapshotBuilder, block, frames

from megatron.torch_trace.allocator.answer import MemoryAnswer, memory
from megatron.torch_trace.allocator.cuda_memory.requests import CudaRequests
from megatron.torch_trace.allocator.fragmentation import Fragmentation
from megatron.torch_trace.allocator.growth import Growth

SECOND = 1_000_000
KEEP, OTHER = "train.py:12 keep", "train.py:20 other"


def answered(built: SnapshotBuilder, folder: Path) -> MemoryAnswer:
    return memory(built.write(folder / "snapshot.pickle"))[0]


def keeping(
    steps: int, *kept: tuple[str, list[int]], name: str = "ProfilerStep#{}"
) -> SnapshotBuilder:
    """Steps of a second, from 1 s on; each stack keeps so many MiB of each."""
    built = SnapshotBuilder()
    built.alloc(512, "model.py:1 __init__", time_us=SECOND // 2)
    for step in range(steps):
        begin = SECOND * (step + 1)
        built.annotation(name.format(step), begin, begin + SECOND)
        for stack, sizes in kept:
            if step < len(sizes) and sizes[step]:
                built.alloc(sizes[step] * MIB, *([stack] if stack else []), time_us=begin + 1000)
    built.free(built.alloc(512, OTHER, time_us=SECOND * (steps + 1)))
    return built


def told(answer: MemoryAnswer) -> list[tuple[int, int, str]]:
    return [(one.size_per_step // MIB, one.steps, one.stack[0]) for one in answer.growth]


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        # The first step fills caches, and what the last one keeps the next may need.
        ([90, 3, 3, 3, 90], [(3, 4, KEEP)]),
        ([0, 3, 5, 4, 0], [(4, 4, KEEP)]),
        ([3, 3, 0, 3, 3], []),
        ([3, 3, 3, 0, 0], [(3, 4, KEEP)]),
    ],
)
def test_memory_grows_if_every_whole_step_but_the_first_keeps_some(
    sizes: list[int], found: list[tuple[int, int, str]], tmp_path: Path
) -> None:
    assert told(answered(keeping(5, (KEEP, sizes)), tmp_path)) == found


@pytest.mark.parametrize(("steps", "marked"), [(4, True), (3, False)])
def test_steps_are_marked_from_four_on(steps: int, marked: bool, tmp_path: Path) -> None:
    answer = answered(keeping(steps, (KEEP, [8] * steps)), tmp_path)
    assert answer.cuda.marked is marked
    assert [one.marked for one in answer.growth] == [True] * marked


def test_steps_of_the_optimizer_stand_for_those_of_the_profiler(tmp_path: Path) -> None:
    built = keeping(5, (KEEP, [8] * 5), name="Optimizer.step#Adam.step")
    assert answered(built, tmp_path).growth == (Growth(8 * MIB, 4, True, (KEEP,)),)


def test_what_grows_most_comes_first_and_what_has_no_stack_is_not_told(tmp_path: Path) -> None:
    built = keeping(5, (KEEP, [3] * 5), (OTHER, [8] * 5), ("", [9] * 5))
    assert told(answered(built, tmp_path)) == [(8, 4, OTHER), (3, 4, KEEP)]


def test_what_is_free_is_told_for_each_device(tmp_path: Path) -> None:
    built = SnapshotBuilder(devices=2)
    built.segment(
        block(4 * MIB), block(2 * MIB, state="inactive"), block(MIB, state="active_pending_free")
    )
    built.segment(block(8 * MIB, state="inactive", address=1 << 20), segment_pool_id=(1, 0))
    built.segment(block(32 * MIB, address=2 << 30), block(16 * MIB, state="inactive"), device=1)
    built.segment(block(64 * MIB, state="inactive", address=3 << 30), device=1)
    answers = {one.device: one for one in memory(built.write(tmp_path / "snapshot.pickle"))}
    assert answers[0].fragmentation == Fragmentation(
        reserved=15 * MIB,
        in_use=5 * MIB,
        returnable=8 * MIB,
        scattered=2 * MIB,
        largest_free=8 * MIB,
        segments=2,
        other_pools=8 * MIB,
    )
    assert answers[1].fragmentation == Fragmentation(
        reserved=112 * MIB,
        in_use=32 * MIB,
        returnable=64 * MIB,
        scattered=16 * MIB,
        largest_free=64 * MIB,
        segments=2,
        other_pools=0,
    )
    # What waits for a stream is no tensor's any more.
    assert (answers[0].peak_bytes, answers[1].peak_bytes) == (4 * MIB, 32 * MIB)


def test_of_two_moments_with_as_much_in_use_the_first_is_the_peak(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    for second in (1, 2):
        held = built.alloc(1000, KEEP, time_us=second * SECOND)
        built.free(held, time_us=second * SECOND + 5)
    answer = answered(built, tmp_path)
    # A request is rounded to 512 bytes.
    assert (answer.peak_bytes, answer.peak_time) == (1024, SECOND * 1000)
    assert answer.usage.in_use.tolist() == [0, 1024, 0, 0, 1024, 0, 0]


def test_what_was_freed_in_the_history_alone_was_in_use_before(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    built.free(7 << 32, size=3000)
    built.free(built.alloc(MIB, KEEP))
    answer = answered(built, tmp_path)
    assert answer.usage.in_use.tolist()[:4] == [3072, 0, 0, MIB]
    (holder,) = answer.holders
    assert (holder.size, holder.module) == (MIB, "train.py keep")


def asked(built: SnapshotBuilder, folder: Path) -> CudaRequests:
    return answered(built, folder).cuda


def test_a_request_right_behind_what_was_given_back_is_a_retry(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    built.entry("segment_alloc", size=MIB)  # the first entry follows none
    for size in (2, 3):
        built.entry("segment_free", size=size * MIB, frames=frames(KEEP))
    built.entry("segment_map", size=4 * MIB, frames=frames(OTHER))
    built.free(built.alloc(MIB, KEEP))
    built.entry("segment_free", size=MIB)
    found = asked(built, tmp_path)
    assert (found.asked, found.retries, found.retry_bytes) == (1, 1, 5 * MIB)
    assert found.retry_stack == (OTHER,)
