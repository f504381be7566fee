# SPDX-License-Identifier: Apache-2.0
"""Whose memory it is, by the file that stands beside a snapshot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from snapshot_builder import MIB, SnapshotBuilder, block

from megatron import torch_trace

_BASE = 1 << 42


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """Blocks of 4, 8 and 2 MiB without a stack, and 3 MiB of a forward pass."""
    builder = SnapshotBuilder()
    builder.segment(block(4 * MIB, address=_BASE), block(8 * MIB), block(2 * MIB))
    builder.alloc(3 * MIB, "mlp.py:9 forward")
    return builder.write(tmp_path / "rank-0.memory_snapshot.pickle")


def owned(address: int, size: int, category: str, name: str = "a buffer") -> dict[str, Any]:
    return {"device": 0, "address": address, "bytes": size, "category": category, "name": name}


def categories(snapshot: Path, *ranges: dict[str, Any]) -> dict[str, int]:
    file = snapshot.with_name("rank-0.memory_owners.json")
    file.write_text(json.dumps({"schema": 1, "ranges": ranges}))
    (answer,) = torch_trace.memory(snapshot)
    return {one.value: size // MIB for one, size in answer.categories.items() if size}


def test_without_the_file_what_is_older_than_the_history_is_unknown(snapshot: Path) -> None:
    (answer,) = torch_trace.memory(snapshot)
    assert {one.value: size // MIB for one, size in answer.categories.items() if size} == {
        "activations": 3,
        "unknown": 14,
    }


def test_what_has_an_owner_is_what_the_owner_says(snapshot: Path) -> None:
    assert categories(
        snapshot,
        owned(_BASE, 4 * MIB, "parameters"),
        owned(_BASE + 4 * MIB, 8 * MIB, "optimizer_state"),
    ) == {"parameters": 4, "optimizer_state": 8, "activations": 3, "unknown": 2}


def test_an_owner_of_a_part_owns_the_block_and_its_neighbours_stay(snapshot: Path) -> None:
    """A buffer that begins inside a block, as custom allocators cut them."""
    gradients = owned(_BASE + 5 * MIB, MIB, "gradients")
    assert categories(snapshot, gradients) == {"gradients": 8, "activations": 3, "unknown": 6}
    behind = owned(_BASE + 12 * MIB, 2 * MIB, "parameters")
    assert categories(snapshot, gradients, behind) == {
        "parameters": 2,
        "gradients": 8,
        "activations": 3,
        "unknown": 4,
    }


def test_owners_of_another_gpu_own_nothing_here(snapshot: Path) -> None:
    assert "parameters" not in categories(
        snapshot, owned(_BASE, 4 * MIB, "parameters") | {"device": 1}
    )


def test_a_category_of_a_later_version_is_other(snapshot: Path) -> None:
    assert categories(snapshot, owned(_BASE, 4 * MIB, "key_value_cache"))["other"] == 4


def test_a_holder_without_a_stack_is_called_by_its_owner(snapshot: Path) -> None:
    categories(snapshot, owned(_BASE + 4 * MIB, 8 * MIB, "gradients", "gradient buffer of DDP"))
    (answer,) = torch_trace.memory(snapshot)
    largest = answer.holders[0]
    assert (largest.category.value, largest.size, largest.module) == (
        "gradients",
        8 * MIB,
        "gradient buffer of DDP",
    )


def test_a_holder_with_a_stack_keeps_it_whoever_owns_the_memory(tmp_path: Path) -> None:
    builder = SnapshotBuilder()
    address = builder.alloc(3 * MIB, "mlp.py:9 forward")
    path = builder.write(tmp_path / "rank-0.memory_snapshot.pickle")
    assert categories(path, owned(address, 3 * MIB, "gradients")) == {"gradients": 3}
    (answer,) = torch_trace.memory(path)
    assert [one.stack for one in answer.holders] == [("mlp.py:9 forward",)]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"ranges": [{"device": "x"}]}', "\x00"])
def test_a_file_that_is_no_list_of_owners_is_as_if_there_were_none(
    text: str, snapshot: Path
) -> None:
    snapshot.with_name("rank-0.memory_owners.json").write_text(text)
    (answer,) = torch_trace.memory(snapshot)
    assert sum(answer.categories.values()) == answer.peak_bytes == 17 * MIB


def test_an_address_that_was_used_by_something_else_before_is_not_the_owners(
    tmp_path: Path,
) -> None:
    """Owners are told at the snapshot: what was freed before it was somebody else's."""
    builder = SnapshotBuilder()
    first = builder.alloc(16 * MIB, "mlp.py:9 forward")
    builder.free(first, "x.py:1 backward")
    builder.entry("alloc", addr=first, size=4 * MIB, frames=[])
    path = builder.write(tmp_path / "rank-0.memory_snapshot.pickle")
    assert categories(path, owned(first, 4 * MIB, "parameters")) == {"activations": 16}
