# SPDX-License-Identifier: Apache-2.0
"""From which number on a process's memory is a finding, and what is said then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from snapshot_builder import GIB, MIB, SnapshotBuilder

from megatron.torch_trace.allocator.answer import MemoryAnswer, memory
from megatron.torch_trace.allocator.cuda_memory.failures import OutOfMemory
from megatron.torch_trace.allocator.findings import memory_findings
from megatron.torch_trace.allocator.fragmentation import Fragmentation
from megatron.torch_trace.allocator.growth import Growth
from megatron.torch_trace.allocator.holders import Holder
from megatron.torch_trace.allocator.purpose.categories import Category

KEEPS = ("train.py:12 keep",)
ADAM = ("/site/torch/optim/adam.py:300 step",)


@pytest.fixture
def healthy(tmp_path: Path) -> MemoryAnswer:
    """A process that has allocated and freed 10 MiB."""
    built = SnapshotBuilder()
    built.free(built.alloc(10 * MIB, "mlp.py:3 forward"))
    (answer,) = memory(built.write(tmp_path / "snapshot.pickle"))
    assert memory_findings(answer) == ()
    return answer


def codes(answer: MemoryAnswer) -> list[str]:
    return [one.code for one in memory_findings(answer)]


def free_between(scattered: int, reserved: int = 4 * GIB) -> Fragmentation:
    in_use = reserved - scattered
    return Fragmentation(reserved, in_use, 0, scattered, scattered, 1, 0)


@pytest.mark.parametrize(
    ("scattered", "reserved", "is_found"),
    [
        (256 * MIB, GIB, True),
        (256 * MIB - 1, GIB, False),
        (409 * MIB, 4 * GIB, False),  # less than a tenth
        (410 * MIB, 4 * GIB, True),
    ],
)
def test_free_pieces_are_trouble_from_256_mib_and_a_tenth_on(
    healthy: MemoryAnswer, scattered: int, reserved: int, is_found: bool
) -> None:
    answer = replace(healthy, fragmentation=free_between(scattered, reserved))
    assert codes(answer) == (["memory_fragmentation"] if is_found else [])


def grows(size: int, name: str = KEEPS[0]) -> Growth:
    return Growth(size, 7, True, (name,))


def test_memory_grows_from_64_kib_a_step_on_and_all_that_grows_is_added(
    healthy: MemoryAnswer,
) -> None:
    less, least, most = grows((1 << 16) - 1, "a.py:1 a"), grows(1 << 16, "b.py:1 b"), grows(MIB)
    assert codes(replace(healthy, growth=(less,))) == []
    (found,) = memory_findings(replace(healthy, growth=(most, least, less)))
    assert found.evidence["bytes_per_step"] == MIB + (1 << 16)
    assert found.sentence.endswith("is not given back: train.py:12 keep and 1 other stack.")


@pytest.mark.parametrize(
    ("steady", "seconds", "is_found"), [(4, 2.0, True), (3, 2.0, False), (9, 0.0, False)]
)
def test_four_requests_to_cuda_in_the_steady_state_are_too_many(
    healthy: MemoryAnswer, steady: int, seconds: float, is_found: bool
) -> None:
    cuda = replace(healthy.cuda, asked=20, steady=steady, steady_seconds=seconds, marked=True)
    answer = replace(healthy, cuda=cuda)
    assert codes(answer) == (["cuda_allocations"] if is_found else [])
    for one in memory_findings(answer):
        assert one.sentence.startswith("After the first step the allocator asked CUDA for memory")
        assert one.evidence == {"cuda_allocations": 4, "per_second": 2.0}


@pytest.mark.parametrize(
    ("size", "category", "is_found"),
    [
        (20 * MIB, Category.TEMPORARIES, True),
        (19 * MIB, Category.TEMPORARIES, False),
        (90 * MIB, Category.OPTIMIZER_STATE, False),
    ],
)
def test_temporaries_of_the_optimizer_are_the_peak_from_a_fifth_on(
    healthy: MemoryAnswer, size: int, category: Category, is_found: bool
) -> None:
    holders = (Holder(size, 1, category, "adam.py step", ADAM),)
    answer = replace(healthy, peak_bytes=100 * MIB, holders=holders)
    assert codes(answer) == (["optimizer_peak"] if is_found else [])


def failed(requested: int, device_free: int) -> OutOfMemory:
    return OutOfMemory(0, requested, device_free, ("mlp.py:3 forward",))


@pytest.mark.parametrize(
    ("device_free", "scattered", "expandable", "fits"),
    [
        (0, GIB, False, True),
        (0, GIB - 1, False, False),
        (600 * MIB, 424 * MIB, False, True),  # CUDA's own can be mapped behind the pieces
        (600 * MIB, 423 * MIB, False, False),
        (2 * GIB, 10 * MIB, False, False),  # more than was asked for: another limit has failed it
        (0, GIB, True, False),
    ],
)
def test_a_request_that_pieces_would_hold_asks_for_segments_that_grow_unless_they_do(
    healthy: MemoryAnswer, device_free: int, scattered: int, expandable: bool, fits: bool
) -> None:
    answer = replace(
        healthy,
        out_of_memory=(failed(8 * GIB, 0), failed(GIB, device_free)),
        fragmentation=free_between(scattered, 100 * GIB),
        expandable=expandable,
    )
    (found,) = memory_findings(answer)
    assert found.sentence.startswith("A request for 1.07 GB failed in mlp.py:3 forward: the GPU")
    assert ("expandable_segments:True" in found.advice) is fits
    assert ("Hold less: " in found.advice) is not fits
    assert "No history was kept" not in found.advice


def test_without_a_history_what_has_no_owner_is_said_to_be_nameless(healthy: MemoryAnswer) -> None:
    answer = replace(healthy, out_of_memory=(failed(GIB, 0),), categories={Category.UNKNOWN: GIB})
    (with_history,), (without,) = (
        memory_findings(replace(answer, entries=entries)) for entries in (3, 0)
    )
    assert "No history was kept" not in with_history.advice
    assert "which code holds the 1.07 GB that have no owner" in without.advice


def test_what_is_worst_comes_first(healthy: MemoryAnswer) -> None:
    answer = replace(
        healthy,
        fragmentation=free_between(GIB),
        growth=(grows(MIB),),
        out_of_memory=(failed(8 * GIB, 0),),
        cuda=replace(healthy.cuda, retries=2, retry_bytes=MIB),
    )
    assert codes(answer) == [
        "out_of_memory", "memory_growth", "allocator_retries", "memory_fragmentation",
    ]  # fmt: skip
