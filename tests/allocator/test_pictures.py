# SPDX-License-Identifier: Apache-2.0
"""What pages draw of memory: small enough for a screen, with the peak where and what it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from snapshot_builder import MIB, SnapshotBuilder, block, frames

from megatron.torch_trace.allocator.answer import MemoryAnswer, answers_of
from megatron.torch_trace.allocator.device_memory import DeviceMemory
from megatron.torch_trace.allocator.pictures.curves import Curves, curves_of
from megatron.torch_trace.allocator.pictures.icicle import Node, icicle_of
from megatron.torch_trace.allocator.pictures.segment_map import SegmentMap, segment_map
from megatron.torch_trace.allocator.purpose.categories import Category

FORWARD = ("mlp.py:3 forward", "transformer_layer.py:9 forward")
ADAM = ("/site/torch/optim/adam.py:178 _init_group", "core/optimizer/optimizer.py:3 step")


def read(built: SnapshotBuilder, folder: Path) -> tuple[MemoryAnswer, DeviceMemory]:
    found: list[DeviceMemory] = []
    (answer,) = answers_of(built.write(folder / "snapshot.pickle"), on_device=found.append)
    return answer, found[0]


def curves(built: SnapshotBuilder, folder: Path, pieces: int = 500) -> Curves:
    return curves_of(read(built, folder)[1], pieces)


def test_a_short_history_is_drawn_as_it_is(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    built.alloc(MIB, *ADAM)
    built.free(built.alloc(2 * MIB, *FORWARD))
    found = curves(built, tmp_path)
    assert {one: values.tolist() for one, values in found.categories.items()} == {
        Category.OPTIMIZER_STATE: [0, MIB, MIB, MIB, MIB],
        Category.ACTIVATIONS: [0, 0, 2 * MIB, 0, 0],
    }
    assert found.peak == 2


def test_thousands_of_entries_keep_every_slices_peak(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    built.alloc(MIB, *ADAM)
    for number in range(1_500):
        tall = number == 777
        address = built.alloc((64 if tall else 1 + number % 3) * MIB, *FORWARD)
        built.free(address)
    answer, memory = read(built, tmp_path)
    found = curves_of(memory, 100)
    assert len(found.times) <= 203
    assert (np.diff(found.times) >= 0).all()
    total = sum(found.categories.values())
    assert total[found.peak] == total.max() == answer.peak_bytes == 65 * MIB
    assert found.times[found.peak] == answer.peak_time
    # Every piece of time has seen 3 MiB of activations.
    assert (total > 3 * MIB).sum() >= 100


def test_categories_add_up_to_what_is_in_use_at_every_point(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    for number in range(300):
        address = built.alloc((1 + number % 5) * MIB, *(FORWARD if number % 2 else ADAM))
        if number % 3:
            built.free(address)
    _, memory = read(built, tmp_path)
    found = curves_of(memory)
    assert sum(found.categories.values()).tolist() == memory.usage.in_use.tolist()


def test_a_history_without_times_counts_entries(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    built.free(built.alloc(2 * MIB, *FORWARD, time_us=0), time_us=0)
    found = curves(built, tmp_path)
    assert (found.timed, found.times.tolist()) == (False, [0, 1, 2, 3])


def test_marks_tell_what_training_did(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    built.alloc(MIB, *FORWARD, time_us=1_000)
    built.alloc(MIB, *FORWARD, time_us=2_000)
    for name in (
        "ProfilerStep#5",
        "forward micro-batch 3 chunk 1 (steady)",
        "backward micro-batch 2",
        "Optimizer.step#AdamW.step",
        "optimizer-inner-step",
        "nccl:all_reduce",
    ):
        built.annotation(name, 1_200, 1_300)
    built.annotation("forward micro-batch 9", 1_900)
    built.annotation("forward micro-batch 1", 100, 200)
    assert [(one.kind, one.label) for one in curves(built, tmp_path).ranges] == [
        ("step", "step 5"),
        ("forward", "3"),
        ("backward", "2"),
        ("optimizer", "optimizer"),
        ("phase", "optimizer-inner-step"),
        ("forward", "9"),
    ]


def test_a_micro_batch_that_takes_turns_with_another_is_drawn_once(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    built.alloc(MIB, *FORWARD, time_us=0)
    built.alloc(MIB, *FORWARD, time_us=9_000)
    for turn in range(200):
        forward, backward = 1_000 + 20 * turn, 1_010 + 20 * turn
        built.annotation("forward micro-batch 3, part", forward, forward + 10)
        built.annotation("backward micro-batch 2, part", backward, backward + 10)
    drawn = [(one.kind, one.label, one.start, one.end) for one in curves(built, tmp_path).ranges]
    assert drawn == [
        ("forward", "3", 1_000_000, 4_990_000),
        ("backward", "2", 1_010_000, 5_000_000),
    ]


def shape(node: Node) -> tuple[object, ...]:
    return (node.frame, node.size // MIB, node.own // MIB, *(shape(one) for one in node.below))


def test_the_icicle_has_the_outermost_frame_first_and_adds_up(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    built.alloc(5 * MIB, "a.py:1 forward", "train.py:1 step")
    built.alloc(3 * MIB, "b.py:1 forward", "train.py:1 step")
    built.alloc(2 * MIB, "train.py:1 step")
    built.segment(block(7 * MIB))
    answer, _ = read(built, tmp_path)
    assert shape(icicle_of(answer.holders)) == (
        "all",
        17,
        0,
        ("train.py:1 step", 10, 2, ("a.py:1 forward", 5, 5), ("b.py:1 forward", 3, 3)),
        ("no stack recorded", 7, 7),
    )


def test_what_is_too_small_to_see_counts_for_its_parent(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    built.alloc(2_000 * MIB, "a.py:1 forward", "train.py:1 step")
    for number in range(1_000):
        built.alloc(512, f"b.py:{number} forward", "train.py:1 step")
    answer, _ = read(built, tmp_path)
    (step,) = icicle_of(answer.holders).below
    assert ([one.frame for one in step.below], step.own) == (["a.py:1 forward"], 512_000)


def pieces(found: SegmentMap | None) -> list[tuple[int, int, int, str, bool]]:
    assert found is not None
    return [
        (
            one.row,
            one.start // MIB,
            one.size // MIB,
            one.category.value if one.category else "free",
            one.begins,
        )
        for one in found.pieces
    ]


def test_segments_are_laid_out_with_their_holes(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    built.segment(
        block(20 * MIB, frames(*ADAM)), block(10 * MIB, state="inactive"), block(34 * MIB)
    )
    _, memory = read(built, tmp_path)
    found = segment_map(memory)
    assert found is not None
    assert (found.row_bytes // MIB, found.rows) == (2, 32)
    assert pieces(found)[0] == (0, 0, 2, "optimizer_state", True)
    by_kind: dict[str, int] = {}
    for _, _, size, kind, _ in pieces(found):
        by_kind[kind] = by_kind.get(kind, 0) + size
    assert by_kind == {"optimizer_state": 20, "free": 10, "unknown": 34}
    assert sum(begins for *_, begins in pieces(found)) == 1


def test_many_small_blocks_are_drawn_as_few_pieces(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    blocks = [
        block(512, frames(*ADAM)) if number % 2 else block(512, state="inactive")
        for number in range(8_000)
    ]
    built.segment(*blocks)
    _, memory = read(built, tmp_path)
    found = segment_map(memory)
    assert found is not None
    assert len(found.pieces) <= 4 * 500
    assert sum(one.size for one in found.pieces) == 8_000 * 512
    assert sum(one.blocks for one in found.pieces if one.start + one.size < found.row_bytes) > 1


def test_segments_that_are_not_drawn_are_counted(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    for number in range(450):
        built.segment(block((2 if number else 4) * MIB), address=(number + 1) << 30)
    _, memory = read(built, tmp_path)
    found = segment_map(memory)
    assert found is not None
    assert (found.left_out, found.left_out_bytes) == (50, 100 * MIB)
