# SPDX-License-Identifier: Apache-2.0
"""Bytes in use over time, the peak, and who holds it: against a process played entry by entry."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st
from snapshot_builder import MIB, SnapshotBuilder, block, frames

from megatron.torch_trace.allocator.answer import memory
from megatron.torch_trace.allocator.holders import Holder
from megatron.torch_trace.allocator.purpose.categories import Category

LAYER = ("layers.py:7 forward", "mlp.py:20 forward", "torch/nn/modules/module.py:1 _call_impl")
ATTENTION = ("attention.py:9 forward", "schedules.py:3 forward_step")


def test_the_peak_is_the_moment_with_most_in_use_and_says_who_holds_it(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    first = built.alloc(8 * MIB, *LAYER)
    built.alloc(8 * MIB, *LAYER)
    third = built.alloc(4 * MIB, *ATTENTION, time_us=5_000_000)
    built.free(third, "attention.py:30 backward")
    built.free(first, "mlp.py:30 backward")
    built.alloc(2 * MIB, *ATTENTION)
    (answer,) = memory(built.write(tmp_path / "rank-3.memory_snapshot.pickle"))
    assert (answer.rank, answer.device) == (3, 0)
    assert (answer.peak_bytes, answer.peak_time) == (20 * MIB, 5_000_000_000)
    assert answer.holders == (
        Holder(16 * MIB, 2, Category.ACTIVATIONS, "layers.py forward", LAYER[:2]),
        Holder(4 * MIB, 1, Category.ACTIVATIONS, "attention.py forward", ATTENTION),
    )
    assert answer.categories == dict.fromkeys(Category, 0) | {Category.ACTIVATIONS: 20 * MIB}


def test_what_was_there_before_the_history_counts(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    built.segment(block(6 * MIB, frames("model.py:1 __init__")), block(2 * MIB, state="inactive"))
    # Freed without a begin: allocated before the ring's first entry.
    built.free(0x1000, size=3 * MIB)
    built.alloc(MIB, *ATTENTION)
    (answer,) = memory(built.write(tmp_path / "snapshot.pickle"))
    assert answer.usage.in_use.tolist() == [9 * MIB, 6 * MIB, 6 * MIB, 7 * MIB]
    assert answer.peak_bytes == 9 * MIB
    assert answer.categories == dict.fromkeys(Category, 0) | {
        Category.PARAMETERS: 6 * MIB,
        Category.UNKNOWN: 3 * MIB,
    }


def test_a_snapshot_without_history_has_its_own_moment_as_the_peak(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    built.segment(block(6 * MIB), block(2 * MIB, state="active_pending_free"))
    (answer,) = memory(built.write(tmp_path / "snapshot.pickle"))
    assert (answer.peak_bytes, answer.peak_reserved, answer.entries) == (6 * MIB, 8 * MIB, 0)
    assert answer.peak_time == 0


def test_reserved_memory_follows_segments(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    built.entry("segment_alloc", addr=0x1000, size=20 * MIB)
    built.entry("segment_free", addr=0x1000, size=20 * MIB)
    built.entry("segment_map", addr=0x2000, size=4 * MIB)
    built.segment(block(4 * MIB), is_expandable=True)
    (answer,) = memory(built.write(tmp_path / "snapshot.pickle"))
    assert answer.usage.reserved.tolist() == [0, 20 * MIB, 0, 4 * MIB]
    assert (answer.peak_reserved, answer.cuda_allocations) == (20 * MIB, 1)


def test_devices_are_kept_apart_and_the_fullest_is_first(tmp_path: Path) -> None:
    built = SnapshotBuilder(devices=4)
    built.alloc(MIB, *LAYER, device=1)
    built.alloc(5 * MIB, *LAYER, device=3)
    answers = memory(built.write(tmp_path / "snapshot.pickle"))
    assert [(one.device, one.peak_bytes) for one in answers] == [(3, 5 * MIB), (1, MIB)]


def test_a_block_that_is_larger_than_the_request_counts_as_it_is(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    address = built.alloc(3 * MIB, *LAYER)
    built.segment(block(3 * MIB, frames(*LAYER), address=address) | {"size": 4 * MIB})
    (answer,) = memory(built.write(tmp_path / "snapshot.pickle"))
    assert (answer.peak_bytes, answer.fragmentation.in_use) == (4 * MIB, 4 * MIB)


moves = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 2000)), max_size=40)


@settings(deadline=None, max_examples=100)
@given(moves, st.integers(0, 39))
def test_usage_is_what_a_process_played_entry_by_entry_has(
    moves: list[tuple[int, int]], forgotten: int
) -> None:
    """Slots are allocated and freed in turn; the ring has forgotten the first entries."""
    built, slots, in_use, course = SnapshotBuilder(), dict[int, tuple[int, int]](), 0, [0]
    for slot, size in moves:
        rounded = -(-size // 512) * 512
        if slot in slots:
            address, held = slots.pop(slot)
            built.free(address)
            in_use -= held
            course += [in_use, in_use]
        else:
            slots[slot] = (built.alloc(size, "a.py:1 forward"), rounded)
            in_use += rounded
            course.append(in_use)
    written = built.snapshot()
    written["device_traces"][0] = written["device_traces"][0][forgotten:]
    kept = written["device_traces"][0]
    if kept and kept[0]["action"] == "free_completed":  # its request was forgotten
        del kept[0]
    with TemporaryDirectory() as folder:
        answers = memory(built.write(Path(folder) / "snapshot.pickle"))
    if answers:
        assert answers[0].usage.in_use.tolist() == course[len(course) - 1 - len(kept) :]
