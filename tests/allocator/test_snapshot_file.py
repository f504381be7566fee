# SPDX-License-Identifier: Apache-2.0
"""Snapshots of every torch, of strangers, cut and odd ones."""

from __future__ import annotations

import gzip
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from snapshot_builder import MIB, SnapshotBuilder, block, frames

from megatron.torch_trace.allocator.answer import memory
from megatron.torch_trace.allocator.purpose.categories import Category
from megatron.torch_trace.allocator.snapshot_file import read_snapshot
from megatron.torch_trace.allocator.stack_table import StackTable
from megatron.torch_trace.errors import UsageError

DATA = Path(__file__).parents[1] / "data" / "memory-snapshot.pickle.gz"
FORWARD = "mlp.py:3 forward"


def written(path: Path, value: Any) -> Path:
    path.write_bytes(pickle.dumps(value))
    return path


def test_a_recorded_snapshot_is_what_pickle_reads() -> None:
    with gzip.open(DATA) as file:
        truth = pickle.load(file)
    entries, blocks = truth["device_traces"][0], [b for s in truth["segments"] for b in s["blocks"]]
    found = read_snapshot(DATA)
    assert found.history.address.tolist() == [one["addr"] for one in entries]
    assert found.history.size.tolist() == [one["size"] for one in entries]
    assert found.history.time.tolist() == [1000 * one["time_us"] for one in entries]
    assert found.blocks.address.tolist() == [one["address"] for one in blocks]
    assert found.blocks.requested.tolist() == [one["requested_size"] for one in blocks]
    assert found.segments.size.tolist() == [one["total_size"] for one in truth["segments"]]
    innermost = [found.stacks.stacks[number][0] for number in found.history.stack]
    assert innermost == [one["frames"][0]["name"] for one in entries]
    assert (found.devices, found.odd, found.cut_short) == ((0,), 0, False)


def test_a_recorded_snapshots_answer() -> None:
    (answer,) = memory(DATA)
    truth = answer.usage
    assert (truth.in_use[-1], truth.reserved[-1]) == (388_886_016, 639_631_360)
    assert answer.peak_bytes == 598_220_800 == sum(answer.categories.values())
    assert answer.fragmentation.in_use == 388_886_016
    assert answer.categories[Category.OPTIMIZER_STATE] == 140_730_368
    assert answer.growth == ()


def test_stacks_are_the_same_whether_lists_are_read_as_a_whole_or_not(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    stack = frames("a.py:1 f", "b.py:2 g", "?:0 torch::autograd::Engine")
    for _ in range(3):
        built.entry("alloc", addr=1, size=1, frames=list(stack))
    built.entry("alloc", addr=1, size=1, frames=frames("a.py:1 f", "b.py:2 g"))
    found = read_snapshot(built.write(tmp_path / "snapshot.pickle"))
    whole = ("a.py:1 f", "b.py:2 g", "torch::autograd::Engine")
    assert [found.stacks.stacks[n] for n in found.history.stack] == [whole] * 3 + [whole[:2]]


def test_a_list_of_segments_of_torch_1_13_with_blocks_that_have_a_history(tmp_path: Path) -> None:
    past = [{"addr": 4096, "real_size": 1000, "frames": frames(FORWARD)}]
    segment = {
        "device": 0, "address": 4096, "total_size": 2 * MIB, "stream": 0, "segment_type": "large",
        "allocated_size": MIB, "active_size": MIB,
        "blocks": [
            {"size": MIB, "state": "active_allocated", "history": past},
            {"size": MIB, "state": "inactive"},
        ],
    }  # fmt: skip
    found = read_snapshot(written(tmp_path / "snapshot.pickle", [segment]))
    assert found.blocks.address.tolist() == [4096, 4096 + MIB]
    assert found.blocks.requested.tolist() == [1000, MIB]
    assert found.stacks.stacks[found.blocks.stack[0]] == (FORWARD,)
    assert np.array_equal(found.history.size, [])


def test_a_history_without_times_has_a_peak_without_a_time(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    built.alloc(MIB, FORWARD)
    snapshot = built.snapshot()
    for entry in snapshot["device_traces"][0]:
        del entry["time_us"]
    (answer,) = memory(written(tmp_path / "snapshot.pickle", snapshot))
    assert (answer.peak_bytes, answer.peak_time, answer.seconds) == (MIB, 0, 0.0)


def test_odd_entries_are_counted_and_left_out(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    built.alloc(MIB, FORWARD)
    built.segment(block(MIB), block(MIB))
    snapshot = built.snapshot()
    snapshot["device_traces"][0] += [
        {"action": "alloc", "addr": "x"},
        {"action": "alloc", "frames": 7},
        {"action": ["alloc"]},
    ]
    snapshot["segments"][0]["blocks"].append({"size": None})
    snapshot["segments"].append({"device": 0})
    (answer,) = memory(written(tmp_path / "snapshot.pickle", snapshot))
    assert (answer.odd, answer.entries) == (4, 2)


def test_an_address_beyond_63_bits_and_an_action_of_a_later_torch_are_read(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    built.entry("alloc", addr=(1 << 64) - 512, size=512)
    built.entry("invented_later", addr=1, size=7)
    (answer,) = memory(built.write(tmp_path / "snapshot.pickle"))
    assert answer.usage.in_use.tolist() == [0, 512, 512]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "neither an allocator snapshot nor a trace"),
        (b"(lp0\n.", "neither an allocator snapshot nor a trace"),
        (b'{"traceEvents": []}', "the trace has no memory events of a GPU"),
        (pickle.dumps([1, 2]), "a pickle, but not of the allocator"),
        (pickle.dumps({"a": 1}), "a pickle, but not of the allocator"),
        (pickle.dumps({"segments": Path("x")}), "asks for pathlib"),
    ],
)
def test_what_is_no_snapshot_is_one_sentence(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=f"snapshot.pickle: {reason}"):
        memory(path)


def test_an_empty_snapshot_has_no_answer(tmp_path: Path) -> None:
    assert memory(SnapshotBuilder().write(tmp_path / "snapshot.pickle")) == ()


def test_a_snapshot_cut_short_is_answered_as_far_as_it_goes(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    for _ in range(3000):
        built.free(built.alloc(MIB, FORWARD))
    whole = built.write(tmp_path / "snapshot.pickle").read_bytes()
    for cut in (len(whole) // 2, len(whole) - 1):
        path = tmp_path / "cut.pickle"
        path.write_bytes(whole[:cut])
        (answer,) = memory(path)
        assert answer.cut_short
        assert answer.peak_bytes == MIB
    packed = tmp_path / "cut.pickle.gz"
    packed.write_bytes(gzip.compress(whole)[:-20])
    assert memory(packed)[0].cut_short


def doubled(times: int = 64) -> Any:
    """A tuple of itself twice, so many times over: a few bytes in a file, and nobody prints it."""
    value: Any = (1,)
    for _ in range(times):
        value = (value, value)
    return value


@pytest.mark.parametrize(
    ("entry", "field"),
    [("entry", "action"), ("frame", "name"), ("frame", "filename"), ("frame", "line"),
     ("annotation", "name"), ("segment", "segment_pool_id"), ("block", "state")],
)  # fmt: skip
def test_a_value_that_would_take_for_ever_to_look_up_is_never_looked_up(
    tmp_path: Path, entry: str, field: str
) -> None:
    built = SnapshotBuilder()
    built.alloc(MIB, FORWARD)
    built.annotation("ProfilerStep#1", 1, 2)
    built.segment(block(2 * MIB))
    snapshot = built.snapshot()
    first = snapshot["device_traces"][0][0]
    segment = snapshot["segments"][0]
    within = {
        "entry": first,
        "frame": first["frames"][0],
        "annotation": snapshot["external_annotations"][0],
        "segment": segment,
        "block": segment["blocks"][0],
    }
    within[entry][field] = doubled()
    answers = memory(written(tmp_path / "snapshot.pickle", snapshot))
    assert len(answers) == 1


def test_a_key_that_would_take_for_ever_to_look_up_is_refused(tmp_path: Path) -> None:
    # Python itself cannot make it: each q remembers a tuple, of which h and \x86 make a pair.
    text = b"\x80\x02}K\x01\x85" + b"".join(b"q%ch%c\x86" % (n, n) for n in range(64)) + b"K\x01s."
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(text)
    with pytest.raises(UsageError, match="has tuples in tuples as keys of a dictionary"):
        memory(path)


def test_a_number_that_no_column_holds_leaves_no_half_of_an_entry(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    built.alloc(MIB, FORWARD)
    built.entry("alloc", addr=1, size=1 << 70)
    built.alloc(MIB, FORWARD, time_us=1 << 62)
    built.alloc(2 * MIB, FORWARD, time_us=1_000_009)
    (answer,) = memory(built.write(tmp_path / "snapshot.pickle"))
    assert answer.odd == 3  # two entries, and the segment of the first one
    assert answer.peak_bytes == 4 * MIB


def test_the_frames_of_one_entry_are_let_go() -> None:
    """A snapshot of millions of entries has as many lists of frames."""
    table, stack = StackTable(), frames(FORWARD)
    kept = sys.getrefcount(stack)
    assert table.stacks[table.number(stack)] == (FORWARD,)
    assert sys.getrefcount(stack) == kept
