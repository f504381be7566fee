# SPDX-License-Identifier: Apache-2.0
"""From which difference on ranks are uneven, and when a GPU has memory left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from snapshot_builder import GIB, MIB, SnapshotBuilder

from megatron.torch_trace.allocator.answer import MemoryAnswer, memory
from megatron.torch_trace.allocator.purpose.categories import Category
from megatron.torch_trace.allocator.ranks.headroom import unused_headroom
from megatron.torch_trace.allocator.ranks.rank_facts import RankFacts
from megatron.torch_trace.allocator.ranks.rank_findings import findings_between
from megatron.torch_trace.allocator.ranks.stages import RankMemory

CAPACITY = 80 * GIB


@pytest.fixture
def answer(tmp_path: Path) -> MemoryAnswer:
    built = SnapshotBuilder()
    built.alloc(MIB, "mlp.py:3 forward")
    (found,) = memory(built.write(tmp_path / "snapshot.pickle"))
    return found


def ranks(
    answer: MemoryAnswer, *peaks: int, stages: list[int] | None = None, reserved: int = 0
) -> list[RankMemory]:
    """Ranks of these peaks, half of each parameters, on GPUs of 80 GiB."""
    found = []
    for rank, peak in enumerate(peaks):
        held = {Category.PARAMETERS: peak // 2, Category.ACTIVATIONS: peak - peak // 2}
        own = replace(
            answer, rank=rank, peak_bytes=peak, categories=held, peak_reserved=max(peak, reserved)
        )
        coordinates = {"pp": stages[rank]} if stages else {}
        found.append(RankMemory(own, RankFacts(coordinates, CAPACITY, loop="megatron")))
    return found


def codes(found: list[RankMemory]) -> list[str]:
    return [one.code for one in findings_between(found)]


@pytest.mark.parametrize(
    ("most", "least", "is_found"),
    [
        (70 * GIB, 63 * GIB, True),
        (70 * GIB, 63 * GIB + 1, False),  # less than a tenth
        (GIB, 768 * MIB, True),
        (GIB, 768 * MIB + 1, False),  # less than 256 MiB
    ],
)
def test_ranks_are_uneven_from_a_tenth_and_256_mib_on(
    answer: MemoryAnswer, most: int, least: int, is_found: bool
) -> None:
    alike, staged = ranks(answer, most, least), ranks(answer, most, least, stages=[0, 1])
    assert [one for one in codes(alike) if one != "unused_headroom"] == (
        ["uneven_ranks"] if is_found else []
    )
    assert [one for one in codes(staged) if one != "unused_headroom"] == (
        ["memory_imbalance"] if is_found else []
    )


def test_of_uneven_ranks_the_fullest_the_emptiest_and_the_middle_are_told(
    answer: MemoryAnswer,
) -> None:
    peaks = [40 * GIB, 70 * GIB, 50 * GIB, 60 * GIB]
    (found,) = findings_between(ranks(answer, *peaks))
    assert found.sentence == (
        "Rank 1 peaks at 75.2 GB, rank 0 at 42.9 GB (median 53.7 GB); 16.1 GB of the difference "
        "are parameters."
    )
    of_first = ranks(answer, *peaks, stages=[0, 0, 0, 0])
    assert codes(of_first) == ["uneven_ranks"]
    # A single other stage's ranks are alike with nobody.
    assert codes(ranks(answer, *peaks, stages=[1, 1, 1, 1])) == []


@pytest.mark.parametrize(
    ("used", "is_found"),
    [
        (64 * GIB, True),
        (64 * GIB + 1, False),
        (8 * GIB, True),
        (8 * GIB - 1, False),  # a trial
    ],
)
def test_a_fifth_of_the_gpu_is_worth_using_where_the_run_uses_a_tenth(
    answer: MemoryAnswer, used: int, is_found: bool
) -> None:
    assert bool([*unused_headroom(ranks(answer, used))]) is is_found


def test_what_is_left_is_what_the_fullest_rank_never_had_from_cuda(answer: MemoryAnswer) -> None:
    (found,) = unused_headroom(ranks(answer, 30 * GIB, 20 * GIB, reserved=40 * GIB))
    assert found.evidence["used_bytes"] == 40 * GIB
    (found,) = unused_headroom(ranks(answer, 30 * GIB, 20 * GIB))
    assert (found.evidence["used_bytes"], found.evidence["unused_bytes"]) == (30 * GIB, 50 * GIB)
    assert found.sentence.startswith("Rank 0, the fullest one, had at most 32.2 GB")
    unknown = RankMemory(answer, RankFacts())
    assert [*unused_headroom([*ranks(answer, 30 * GIB), unknown])] == []
