# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  (a sentence that users read stands on one line)
"""Ranks that are ahead of those that wait are at fault for nothing."""

from __future__ import annotations

from pathlib import Path

from record_builder import RecordBuilder

from megatron.torch_trace.flight_recorder.answer import hang


def test_ranks_that_completed_the_last_collective_do_not_hold_up_the_gpu_that_is_stuck_in_it(
    tmp_path: Path,
) -> None:
    built = RecordBuilder(dp0=[0, 1, 2]).call([0, 2], "dp0", 9, state="completed")
    built.call(1, "dp0", 9, state="started")
    answer = hang(built.write(tmp_path))
    assert answer.culprits == (1,)
    assert answer.verdict == (
        "The GPU of rank 1 is stuck in data-parallel all_reduce 9, which ranks 0, 2 have completed."
    )


def test_a_rank_that_completed_a_collective_and_waits_elsewhere_has_called_it(
    tmp_path: Path,
) -> None:
    """Rank 0 waits for rank 1 in another group, whose GPU is stuck before it comes there."""
    built = RecordBuilder(dp0=[0, 1], tp0=[0, 1]).call(0, "dp0", 9, state="completed")
    built.call(1, "dp0", 9, state="started").call([0, 1], "tp0", 4)
    answer = hang(built.write(tmp_path))
    assert [(one.rank, one.cause.value, one.waits) for one in answer.blames] == [
        (1, "gpu_stuck", (0,))
    ]


def test_two_ranks_that_call_one_thing_differently_are_not_said_to_have_skipped_another(
    tmp_path: Path,
) -> None:
    built = RecordBuilder(mp0=[0, 1, 2, 3, 4], dp0=[0, 1])
    built.call(0, "dp0", 2, size=8).call(1, "dp0", 2, size=16).call([2, 3, 4], "mp0", 3)
    answer = hang(built.write(tmp_path))
    assert answer.culprits == ()
    assert answer.verdict == (
        "Ranks 0-1 call data-parallel all_reduce 2 differently: rank 0 all_reduce with [8] BFloat16; "
        "rank 1 all_reduce with [16] BFloat16. Nothing tells which of them is wrong."
    )
