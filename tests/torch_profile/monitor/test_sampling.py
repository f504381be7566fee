# SPDX-License-Identifier: Apache-2.0
"""Which iterations are measured in their parts."""

from __future__ import annotations

from megatron.torch_profile.monitor.iterations.sampling import Sampling

MS = 1_000_000


def shares(lengths: list[int]) -> list[bool]:
    sampling = Sampling()
    return [
        sampling.in_parts(iteration, ended, disturbed=False)
        for iteration, ended in enumerate([0, *lengths], start=1)
    ]


def test_a_run_that_is_always_uneven_is_not_always_measured_in_parts() -> None:
    chosen = shares([100 * MS if n % 3 else 200 * MS for n in range(20_000)])
    assert sum(chosen[:300]) > 100, "it is while the budget lasts"
    # One in 32 whatever happens, and as many again out of the budget that fills meanwhile.
    assert 1.5 / 32 < sum(chosen[2000:]) / 18_000 < 2.1 / 32


def test_evaluation_and_the_first_iterations_are_no_slow_iterations() -> None:
    sampling = Sampling()
    chosen = []
    for iteration in range(1, 200):
        slow = iteration <= 4 or iteration % 10 == 0
        ended = 900 * MS if slow else 100 * MS
        if sampling.in_parts(iteration, ended, disturbed=iteration > 4 and slow):
            chosen.append(iteration)
    assert chosen == [*range(4, 28), 32, 64, 96, 128, 160, 192]


def test_ranks_that_wait_for_each_other_choose_the_same_iterations() -> None:
    lengths = [100 * MS] * 60 + [140 * MS] * 3 + [100 * MS] * 60
    assert shares(lengths) == shares([one + 2 * MS for one in lengths])
    assert [n for n, one in enumerate(shares(lengths), 1) if one][25:] == [62, 63, 64, 65, 66, 96]


def test_what_is_within_the_usual_variation_is_not_slow() -> None:
    uneven = shares([90 * MS, 110 * MS] * 60)
    assert [n for n, one in enumerate(uneven, 1) if one] == [*range(4, 28), 32, 64, 96]


def test_the_less_is_left_of_the_budget_the_clearer_a_case_must_be() -> None:
    usual, little, much = [100 * MS] * 60, [108 * MS], [200 * MS]
    assert shares([*usual, *little])[-1]
    spent = [*usual, *(much + [100 * MS] * 3) * 70]
    assert not shares([*spent, *[100 * MS] * 9, *little])[-1]
    assert shares([*spent, *[100 * MS] * 9, *much])[-1]
