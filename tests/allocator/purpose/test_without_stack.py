# SPDX-License-Identifier: Apache-2.0
"""Memory that no call stack and no owner tells, told in another way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from snapshot_builder import MIB, SnapshotBuilder, block

from megatron import torch_trace

_BASE = 1 << 42
FORWARD = "megatron/core/transformer/mlp.py:3 forward"


def categories(snapshot: Path) -> dict[str, int]:
    (answer,) = torch_trace.memory(snapshot)
    return {one.value: size // MIB for one, size in answer.categories.items() if size}


def with_autograd(*, stacks: bool) -> SnapshotBuilder:
    """At the peak: 4 MiB of a forward pass, 8 MiB of autograd's own thread."""
    built = SnapshotBuilder()
    activation = built.alloc(4 * MIB, *([FORWARD] if stacks else []))
    temporary = built.alloc(8 * MIB)
    built.free(temporary)
    built.free(activation)
    return built


def test_what_autograds_thread_has_for_a_moment_is_a_temporary(tmp_path: Path) -> None:
    path = with_autograd(stacks=True).write(tmp_path / "snapshot.pickle")
    assert categories(path) == {"activations": 4, "temporaries": 8}


def test_where_no_stack_was_recorded_a_missing_one_tells_nothing(tmp_path: Path) -> None:
    path = with_autograd(stacks=False).write(tmp_path / "snapshot.pickle")
    assert categories(path) == {"unknown": 12}


def test_what_autograds_thread_keeps_is_unknown(tmp_path: Path) -> None:
    built = with_autograd(stacks=True)
    built.alloc(16 * MIB)
    assert categories(built.write(tmp_path / "snapshot.pickle")) == {"unknown": 16}


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        ([], {"unknown": 36 + 32}),
        ([32 * MIB], {"other": 32, "unknown": 36}),
        ([32 * MIB, 1], {"other": 32, "unknown": 36}),
        ([8 * MIB], {"unknown": 36 + 32}),
    ],
)
def test_a_workspace_of_cublas_is_told_by_its_size(
    tmp_path: Path, sizes: list[int], found: dict[str, int]
) -> None:
    built = SnapshotBuilder()
    built.segment(block(32 * MIB, address=_BASE), block(36 * MIB))
    path = built.write(tmp_path / "rank-0.memory_snapshot.pickle")
    owners = {"schema": 1, "ranges": [], "weight_bytes": [], "blas_workspace_bytes": sizes}
    (tmp_path / "rank-0.memory_owners.json").write_text(json.dumps(owners))
    assert categories(path) == found
    (answer,) = torch_trace.memory(path)
    named = [one.stack for one in answer.holders if one.category.value == "other"]
    assert named == [("cuBLAS workspace, by its size",)] * ("other" in found)


def test_what_is_as_large_but_not_as_old_is_no_workspace(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    built.alloc(32 * MIB)
    path = built.write(tmp_path / "rank-0.memory_snapshot.pickle")
    owners = {"schema": 1, "ranges": [], "blas_workspace_bytes": [32 * MIB]}
    (tmp_path / "rank-0.memory_owners.json").write_text(json.dumps(owners))
    assert categories(path) == {"unknown": 32}


def test_a_parameter_of_the_same_size_stays_a_parameter(tmp_path: Path) -> None:
    built = SnapshotBuilder()
    built.segment(block(32 * MIB, address=_BASE), block(32 * MIB))
    path = built.write(tmp_path / "rank-0.memory_snapshot.pickle")
    owner = {
        "device": 0, "address": _BASE, "bytes": 32 * MIB, "category": "parameters", "name": "a",
    }  # fmt: skip
    owners = {"schema": 1, "ranges": [owner], "blas_workspace_bytes": [32 * MIB]}
    (tmp_path / "rank-0.memory_owners.json").write_text(json.dumps(owners))
    assert categories(path) == {"parameters": 32, "other": 32}
