# SPDX-License-Identifier: Apache-2.0
"""How many iterations a training told in samples has, counted by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from megatron.torch_profile.plan.training_length import batch_grows, flag, of_ramp, of_steps
from megatron.torch_trace.errors import UsageError


def test_a_batch_that_grows_by_increments_needs_more_iterations_than_the_full_one() -> None:
    # Batches of 4 and 4 up to 8 samples, of 6 up to 14 and 20, of 8 to 28: then 12 samples of 8.
    assert of_ramp(40, 8, (4, 2, 16)) == 2 + 2 + 1 + 1


def test_samples_that_end_while_the_batch_grows_end_training() -> None:
    assert of_ramp(8, 8, (4, 2, 1000)) == 3


def test_a_schedule_in_tokens_counts_the_last_batch_that_is_not_full() -> None:
    # Samples of 10 tokens: batches of 2 until 8 samples, of 5 until 21.
    assert of_steps(21, "0:2 80:5", 10) == 4 + 3
    assert of_steps(21, "0:2, 0.08K:5", 10) == 4 + 3


def test_stages_that_a_larger_batch_jumps_over_or_that_come_too_late_count_nothing() -> None:
    assert of_steps(20, "0:10 5:1 10:10 1M:99", 1) == 2


@pytest.mark.parametrize("ramp", [(0, 2, 8), (4, 3, 8), (8, 2, 8), (4, 2, -1)])
def test_a_ramp_that_does_not_reach_the_batch_is_refused(ramp: tuple[int, int, int]) -> None:
    words = " ".join(map(str, ramp))
    with pytest.raises(UsageError) as refused:
        of_ramp(40, 8, ramp)
    assert str(refused.value) == (
        f"--rampup-batch-size {words}: from {ramp[0]} the batch cannot reach --global-batch-size 8 "
        f"in steps of {ramp[1]}."
    )


@pytest.mark.parametrize("schedule", ["", "768", "50:768", "0:none", "0:0", "0:1:2"])
def test_what_is_no_schedule_is_refused(schedule: str) -> None:
    with pytest.raises(UsageError, match=r"--step-batch-size-schedule .*from token 0 on"):
        of_steps(40, schedule, 10)


def test_messages_name_the_flag_that_was_given() -> None:
    assert flag(SimpleNamespace(train_samples=48, train_iters=6)) == "--train-samples 48"
    assert flag(SimpleNamespace(train_samples=None, train_iters=6)) == "--train-iters 6"
    assert flag(SimpleNamespace(train_iters=6)) == "--train-iters 6"


@pytest.mark.parametrize("name", ["rampup_batch_size", "step_batch_size_schedule"])
def test_a_batch_grows_by_either_flag(name: str) -> None:
    assert batch_grows(SimpleNamespace(**{name: "0:1 8:2"}))
    assert not batch_grows(SimpleNamespace(**{name: None}))
