# SPDX-License-Identifier: Apache-2.0
"""From compute to the iteration: what each cause adds, by its predicted gain."""

from __future__ import annotations

from dataclasses import dataclass

from megatron.torch_trace.analysis.results.analysis import Analysis, Finding
from megatron.torch_trace.wording import duration

_DECIMALS = 2


@dataclass(frozen=True, slots=True)
class BudgetStep:
    """One step of the waterfall; left and width are % of the iteration.

    Args:
        label: what adds the time.
        kind: `compute`, `gain`, `rest` or `iteration`.
        time_ns: how much.
        told: the time, with its error where it is predicted.
        anchor: of the card that says more; "" if there is none.
    """

    label: str
    kind: str
    time_ns: int
    left: float
    width: float
    told: str
    anchor: str = ""


def anchor_of(finding: Finding) -> str:
    """The id of a finding's card on the page."""
    return f"finding-{finding.name}".replace(" ", "-")


def time_budget(analysis: Analysis) -> list[BudgetStep]:
    """The steps from the top to the bottom; none where no gain is known.

    Gains of several causes together may be less than their sum: then the steps overlap at the end.
    """
    shares, iteration = analysis.summary.shares, analysis.summary.iteration_ns
    cards = [
        (one, anchor_of(one)) for one in analysis.findings if one.cause is None and one.sure_gain_ns
    ]
    if shares is None or not iteration or not cards:
        return []
    whole = round(iteration)
    compute = round(shares.compute * iteration)

    def step(label: str, kind: str, start: int, time: int, told: str, anchor: str) -> BudgetStep:
        left = round(100 * max(0, min(start, whole - time)) / whole, _DECIMALS)
        width = round(100 * min(time, whole) / whole, _DECIMALS)
        return BudgetStep(label, kind, time, left, width, told, anchor)

    steps = [step("compute", "compute", 0, compute, duration(compute), "")]
    at = compute
    for one, anchor in cards:
        time = one.sure_gain_ns
        told = f"{duration(time)} ± {duration(one.gain_error_ns or 0)}"
        steps.append(step(one.name, "gain", at, time, told, anchor))
        at += time
    if at < whole:
        rest = whole - at
        steps.append(step("no known gain", "rest", at, rest, duration(rest), ""))
    steps.append(step("iteration", "iteration", 0, whole, duration(whole), ""))
    return steps
