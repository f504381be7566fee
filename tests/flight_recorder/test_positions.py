# SPDX-License-Identifier: Apache-2.0
"""Where a rank is by its Python stack, and which of several ranks differs from most."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron.torch_trace.flight_recorder.hang_files import LastHang
from megatron.torch_trace.flight_recorder.positions import blames_by_position, position_of
from megatron.torch_trace.format.hang_records import HangRecord, ThreadStack

TORCH = "/site/torch/distributed/distributed_c10d.py"
MINE = "/my/layer.py:7 forward"
LOADER = "/site/torch/utils/data/dataloader.py:88 __next__"
PYTHON = "/usr/lib/python3.12/threading.py:355 wait"
OBJECTS = f"{TORCH}:2 all_gather_object"
LOCK = "a thread of it keeps Python's lock"
TRANSFER = "/site/megatron/core/pipeline_parallel/p2p_communication.py:9 _communicate"


def record(
    *stack: str,
    rank: int = 0,
    code: str = "",
    began_ns: int = 0,
    modules: tuple[str, ...] = (),
    locked: bool = False,
) -> HangRecord:
    return HangRecord(
        rank=rank,
        world_size=4,
        host="node0",
        pid=1,
        iteration=1,
        seconds=30.0,
        written_ns=began_ns,
        began_ns=began_ns,
        modules=modules,
        micro_batch=None,
        threads=(ThreadStack("MainThread", True, stack, code),),
        locked=locked,
    )


@pytest.mark.parametrize(
    ("found", "collective", "frame"),
    [
        (record(f"{TORCH}:2 all_reduce", f"{TORCH}:1 wrapper", MINE), "all_reduce", MINE),
        # What the program has called is the outermost one.
        (record(f"{TORCH}:3 all_gather", OBJECTS, MINE), "all_gather_object", MINE),
        (record(f"{TORCH}:2 wait", MINE), "a collective", MINE),
        (record(MINE, code="work.wait()"), "a collective", MINE),
        (record(MINE, code="loss.item()"), "the GPU", MINE),
        (record(TRANSFER, code="req.wait()"), "a pipeline transfer", TRANSFER),
        (record(MINE, code="y = f(x)"), "", MINE),
        (record(PYTHON, LOADER, MINE), "", LOADER),
        (record(PYTHON), "", PYTHON),
        (record(), "", ""),
        # Nothing in Python has run since: the line may be long past.
        (record(f"{TORCH}:2 all_reduce", MINE, locked=True), "", MINE),
    ],
)  # fmt: skip
def test_a_stack_tells_what_a_rank_waits_in_and_where(
    found: HangRecord, collective: str, frame: str
) -> None:
    position = position_of(found)
    assert (position.collective, position.frame) == (collective, frame)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (record(LOADER), "in dataloader.py:88 (__next__, data loader)"),
        (record("/my/checkpoint.py:3 save", LOADER), "in checkpoint.py:3 (save, data loader)"),
        (record(f"{TORCH}:2 barrier", LOADER), "in dataloader.py:88 (__next__)"),
        (
            record(MINE, modules=("decoder: Decoder", "decoder.layers.3: Layer")),
            "in layer.py:7 (forward), in decoder.layers.3: Layer",
        ),
        (record(MINE, locked=True), f"in layer.py:7 (forward), and {LOCK}"),
        (record(), "at a line that its record does not tell"),
    ],
)  # fmt: skip
def test_a_position_is_said_with_its_work_and_its_innermost_module(
    found: HangRecord, words: str
) -> None:
    assert position_of(found).words == words


def reduces(rank: int, began_ns: int = 0) -> HangRecord:
    return record(f"{TORCH}:2 all_reduce", MINE, rank=rank, began_ns=began_ns)


def gathers(rank: int) -> HangRecord:
    return record(f"{TORCH}:2 all_gather", "/my/loss.py:3 gather", rank=rank)


def sends(rank: int) -> HangRecord:
    return record(TRANSFER, rank=rank, code="req.wait()")


def blamed(*records: HangRecord) -> list[tuple[int, str, tuple[int, ...], str]]:
    """Rank, cause, the ranks that wait for it, and what they wait in."""
    hang = LastHang({one.rank: one for one in records}, (), (), ())
    positions = {one.rank: position_of(one) for one in records}
    found = blames_by_position(hang, positions)
    return [(one.rank, one.cause.value, one.waits, one.call.name) for one in found]


def test_the_few_that_wait_in_another_collective_than_most_never_called_that_one() -> None:
    records = [reduces(0), reduces(1), gathers(2), reduces(3)]
    assert blamed(*records) == [(2, "never_called", (0, 1, 3), "all_reduce")]


def test_of_two_and_two_neither_are_the_few() -> None:
    assert blamed(reduces(0), reduces(1), gathers(2), gathers(3)) == []


def test_stages_of_a_pipeline_may_wait_in_different_things() -> None:
    assert blamed(reduces(0), reduces(1), reduces(2), sends(3)) == []


def test_who_is_elsewhere_is_waited_for_in_what_was_waited_in_first() -> None:
    records = [reduces(0, began_ns=9), record(TRANSFER, rank=1, code="r.wait()", began_ns=3)]
    waits = ((0, 1), "a pipeline transfer")
    assert blamed(*records, record(MINE, rank=2)) == [
        (3, "no_file", *waits),
        (2, "not_in_a_collective", *waits),
    ]
    assert blamed(record(MINE, rank=0)) == []


def test_a_rank_whose_record_is_damaged_has_left_one() -> None:
    damaged = (Path("rank-3.iter-0000001.hang.json"),)
    hang = LastHang({one: reduces(one) for one in range(3)}, (), (), damaged)
    assert hang.absent == ()
