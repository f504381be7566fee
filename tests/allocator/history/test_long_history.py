# SPDX-License-Identifier: Apache-2.0
"""A history of any length is read and judged a piece at a time, with the same answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from snapshot_builder import MIB, SnapshotBuilder

from megatron.torch_trace.allocator import usage
from megatron.torch_trace.allocator.answer import MemoryAnswer, memory
from megatron.torch_trace.allocator.history import lifetimes
from megatron.torch_trace.allocator.history.lifetimes import lifetimes_of
from megatron.torch_trace.allocator.json_answer import document
from megatron.torch_trace.allocator.purpose import categories
from megatron.torch_trace.allocator.ranks.rank_findings import rank_memories
from megatron.torch_trace.allocator.snapshot import Action, History
from megatron.torch_trace.allocator.snapshot_file import read_snapshot, snapshot_of

DATA = Path(__file__).parents[2] / "data" / "memory-snapshot.pickle.gz"


def in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (categories, lifetimes, usage):
        monkeypatch.setattr(module, "_PIECE", 7)


def said(answers: tuple[MemoryAnswer, ...]) -> Any:
    found = document(rank_memories(answers), 1000)
    courses = [
        [one.usage.in_use.tolist(), one.usage.reserved.tolist(), one.usage.time.tolist()]
        for one in answers
    ]
    return json.dumps([found, courses])


def training(devices: int = 1, steps: int = 700) -> SnapshotBuilder:
    """Steps whose allocations live for a moment, until the next step, and for ever."""
    built = SnapshotBuilder(devices)
    for device in range(devices):
        kept = built.alloc(MIB, "a.py:1 forward", device=device)
        for step in range(steps):
            built.entry("segment_alloc", device, addr=step, size=2 * MIB)
            passing = built.alloc(1000 * step, "b.py:2 forward", device=device)
            built.free(passing, "b.py:3 forward", device=device)
            built.free(kept, device=device)
            kept = built.alloc(MIB + step, f"c.py:{step % 9} forward", device=device)
        built.entry("oom", device, device_free=1 << 33, size=1 << 34)
    return built


@pytest.mark.parametrize("devices", [1, 2])
def test_the_answer_is_that_of_the_entries_one_by_one(tmp_path: Path, devices: int) -> None:
    built = training(devices)
    path = built.write(tmp_path / "rank-0.memory_snapshot.pickle")
    found, truth = read_snapshot(path), snapshot_of(built.snapshot(), path)
    for name in ("device", "action", "address", "size", "stream", "time", "stack"):
        read, wanted = getattr(found.history, name), getattr(truth.history, name)
        assert read.tolist() == wanted.tolist(), name
    assert found.stacks.stacks == truth.stacks.stacks


@pytest.mark.parametrize("what", [DATA, "training", "two devices"])
def test_the_answer_is_the_same_in_small_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: Path | str
) -> None:
    path = (
        what
        if isinstance(what, Path)
        else training(1 + (what != "training")).write(tmp_path / "snapshot.pickle")
    )
    whole = said(memory(path))
    if isinstance(what, Path):
        monkeypatch.setattr(lifetimes, "_PIECE", 900)
        monkeypatch.setattr(categories, "_PIECE", 800)
        monkeypatch.setattr(usage, "_PIECE", 700)
    else:
        in_small_pieces(monkeypatch)
    assert said(memory(path)) == whole


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(list(Action)), st.integers(0, 5)), max_size=60))
def test_lifetimes_are_the_same_in_small_pieces(entries: list[tuple[Action, int]]) -> None:
    actions, addresses = [one for one, _ in entries], [address for _, address in entries]
    zeros = np.zeros(len(entries), dtype=np.int64)
    columns = (np.array(actions, dtype=np.int8), np.array(addresses, dtype=np.int64))
    history = History(zeros, *columns, zeros, zeros, zeros, zeros)

    def lists() -> list[list[int]]:
        found = lifetimes_of(history)
        return [found.begin.tolist(), found.end.tolist(), found.orphans.tolist()]

    whole = lists()
    with pytest.MonkeyPatch.context() as patching:
        in_small_pieces(patching)
        assert lists() == whole


def test_an_entry_of_the_history_takes_less_than_32_bytes(tmp_path: Path) -> None:
    history = read_snapshot(training().write(tmp_path / "snapshot.pickle")).history
    columns = (history.action, history.address, history.size, history.stream, history.time)
    assert sum(one.itemsize for one in (*columns, history.stack)) < 32
    assert history.device.base is not None  # one number stands for all


def test_sizes_beyond_four_bytes_are_whole(tmp_path: Path) -> None:
    built = training(steps=3)
    built.alloc(5 << 30, "big.py:1 forward")
    built.entry("alloc", addr=7, size=(1 << 31) - 1)
    (answer,) = memory(built.write(tmp_path / "snapshot.pickle"))
    assert answer.peak_bytes == answer.usage.in_use.max() > (7 << 30)
    sizes = {one.stack: one.size for one in answer.holders}
    assert sizes["big.py:1 forward",] == 5 << 30
    assert sizes[()] == 1 << 31


def test_an_answer_without_its_history_says_the_same_of_the_peak() -> None:
    (answer,) = memory(DATA)
    small = answer.without_history()
    assert (small.peak_bytes, small.peak_time) == (answer.peak_bytes, answer.peak_time)
    assert small.usage.peak_bytes == answer.usage.peak_bytes
    assert len(small.usage.allocations) == 0
