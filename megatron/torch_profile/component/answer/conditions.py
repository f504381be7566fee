# SPDX-License-Identifier: Apache-2.0
"""`--fail-if`: a condition on variants, for CI of model code.

condition = VARIANT comparison FACTOR x VARIANT      compiled > 1.0x eager
          | VARIANT comparison TIME                  eager > 120us
TIME      = number with us, ms or s                  of the median

A variant that is measured at several points of a grid stands for all of them: the condition holds
if it holds at one. A factor holds only where noise does not explain it; a time is the median's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from megatron.torch_profile.component.config import nearest
from megatron.torch_profile.component.measure.samples import ratio
from megatron.torch_profile.component.results import Answer, Result
from megatron.torch_profile.component.variants import Case
from megatron.torch_trace.errors import TorchTraceError, UsageError
from megatron.torch_trace.format.comparison_signs import COMPARISONS, NS_OF_UNIT
from megatron.torch_trace.wording import duration

_CONDITION = re.compile(
    r"\s*(?P<name>.+?)\s*(?P<comparison>[<>]=?)\s*(?P<amount>\d+(?:\.\d+)?)\s*"
    r"(?:(?P<unit>us|ms|s)|x\s+(?P<base>.+?))\s*"
)


@dataclass(frozen=True, slots=True)
class Condition:
    """One `--fail-if`, understood.

    Args:
        amount: a factor where there is a base, else ns.
    """

    text: str
    name: str
    comparison: str
    amount: float
    base: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a condition, and in words what was measured."""

    condition: Condition
    holds: bool
    told: str


def parse(text: str, cases: list[Case]) -> Condition:
    """Understand a condition.

    Raises:
        UsageError: what is wrong with it, and what would be right.
    """
    match = _CONDITION.fullmatch(text)
    if not match:
        raise UsageError(
            f"--fail-if '{text}': not a condition; write VARIANT > FACTORx VARIANT or "
            "VARIANT > TIME, like 'compiled > 1.0x eager' or 'eager > 120us'."
        )
    known = list(
        dict.fromkeys(name for case in cases for name in (case.variant, case.name) if name)
    )
    for name in (match["name"], match["base"]):
        if name is not None and name not in known:
            raise UsageError(f"--fail-if '{text}': no variant `{name}`{nearest(name, known)}")
    amount = float(match["amount"]) * NS_OF_UNIT.get(match["unit"], 1.0)
    return Condition(text.strip(), match["name"], match["comparison"], amount, match["base"])


def judge(condition: Condition, answer: Answer) -> Verdict:
    """Whether the condition holds.

    Raises:
        TorchTraceError: a variant has not been measured, so nobody can tell.
    """
    ones = _named(condition, condition.name, answer)
    if condition.base is None:
        return _of_time(condition, ones)
    bases = _named(condition, condition.base, answer)
    told = []
    for one in ones:
        base = next((other for other in bases if other.case.point == one.case.point), bases[0])
        assert one.slowest is not None
        assert base.slowest is not None
        found = ratio(one.slowest.times, base.slowest.times)
        if found is None:
            continue
        said = f"{one.case.name} takes {found.value:.3g}x the time of {base.case.name}"
        if condition.comparison.startswith(">"):
            holds = found.surely_above(condition.amount)
        else:
            holds = found.surely_below(condition.amount)
        if holds:
            return Verdict(condition, True, said)
        told.append(said)
    return Verdict(condition, False, "; ".join(told))


def _of_time(condition: Condition, ones: list[Result]) -> Verdict:
    told = []
    for one in ones:
        assert one.summary is not None
        said = f"{one.case.name} takes {duration(one.summary.median)}"
        if COMPARISONS[condition.comparison](one.summary.median, condition.amount):
            return Verdict(condition, True, said)
        told.append(said)
    return Verdict(condition, False, "; ".join(told))


def _named(condition: Condition, name: str, answer: Answer) -> list[Result]:
    found = [one for one in answer.results if name in (one.case.name, one.case.variant)]
    for one in found:
        if one.failure:
            raise TorchTraceError(f"--fail-if '{condition.text}': {name} failed: {one.failure}")
    return found
