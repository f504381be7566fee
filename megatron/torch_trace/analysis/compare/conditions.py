# SPDX-License-Identifier: Apache-2.0
"""`--fail-if`: a condition on a comparison, for CI.

condition = metric comparison threshold          idle > +5%
metric    = iteration | compute | exposed_communication | exposed_memory | idle | communication
          | overlapped_communication | kernels | straggler | mfu
          | undisturbed                          the iteration without the profiler
          | tp | pp | dp | cp | ep | ...         exposed communication of a dimension
          | kernel:TEXT | family:NAME | module:PATH
threshold = [+|-] number unit
unit      = %                                    of A's value
          | pp                                   percentage points of the iteration (of mfu)
          | ms | us | s                          an iteration and rank
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from megatron.torch_trace.analysis.communication.dimensions import ORDER
from megatron.torch_trace.analysis.compare.comparison import Comparison
from megatron.torch_trace.analysis.compare.statistics import Difference
from megatron.torch_trace.analysis.compare.tables import WorkDifference
from megatron.torch_trace.errors import TorchTraceError, UsageError
from megatron.torch_trace.format.breakdown_parts import BREAKDOWN_PARTS
from megatron.torch_trace.format.comparison_signs import COMPARISONS, NS_OF_UNIT

_CONDITION = re.compile(
    r"\s*(?P<metric>[a-z_-]+(?::.*?)?)\s*(?P<comparison>[<>]=?)\s*"
    r"(?P<amount>[+-]?\d+(?:\.\d+)?)\s*(?P<unit>%|pp|ms|us|s)\s*"
)
_NAMED = (
    "iteration", *BREAKDOWN_PARTS, "communication",
    "overlapped_communication", "kernels", "straggler", "mfu", "undisturbed",
)  # fmt: skip
_DIMENSIONS = (*(one for one in ORDER if one != "unknown"), "edp", "gtp", "tp-cp", "tp-dp")
_TABLES = ("kernel", "family", "module")


@dataclass(frozen=True, slots=True)
class Condition:
    """One `--fail-if`, understood."""

    text: str
    metric: str
    comparison: str
    amount: float
    unit: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a condition: `change` is in its unit, infinite where A has nothing of it."""

    condition: Condition
    change: float
    holds: bool


def parse(text: str) -> Condition:
    """Understand a condition.

    Raises:
        UsageError: what is wrong with it, and what would be right.
    """
    match = _CONDITION.fullmatch(text)
    if not match:
        raise UsageError(
            f"--fail-if '{text}': not a condition; write METRIC > CHANGE, like 'idle > +5%', "
            "'iteration > +10ms' or 'mfu < -2pp'."
        )
    metric = match["metric"]
    table, _, name = metric.partition(":")
    if metric not in (*_NAMED, *_DIMENSIONS) and not (name and table in _TABLES):
        raise UsageError(
            f"--fail-if '{text}': no metric '{metric}'; there are {', '.join(_NAMED)}, the "
            f"dimensions (tp, pp, dp, cp, ep, ...), and kernel:TEXT, family:NAME, module:PATH."
        )
    if metric == "mfu" and match["unit"] in NS_OF_UNIT:
        raise UsageError(f"--fail-if '{text}': mfu is no time; give a change in pp or %.")
    return Condition(
        text.strip(), metric, match["comparison"], float(match["amount"]), match["unit"]
    )


def judge(condition: Condition, comparison: Comparison) -> Verdict:
    """Whether the condition holds.

    Raises:
        TorchTraceError: the metric is unknown on a side, so nobody can tell.
    """
    value = _value(condition.metric, comparison)
    if value.before is None or value.after is None:
        side = "A" if value.before is None else "B"
        raise TorchTraceError(
            f"--fail-if '{condition.text}': {condition.metric} is unknown in {side}."
        )
    change = _change(condition, value.before, value.after, comparison)
    return Verdict(condition, change, COMPARISONS[condition.comparison](change, condition.amount))


def _change(condition: Condition, before: float, after: float, comparison: Comparison) -> float:
    change = after - before
    if condition.unit in NS_OF_UNIT:
        return change / NS_OF_UNIT[condition.unit]
    if condition.unit == "%":
        if not before:
            return float("inf") if change > 0 else 0.0
        return 100 * change / before
    if condition.metric == "mfu":
        return 100 * change
    whole = comparison.iteration
    return 100 * (after / (whole.after or 1) - before / (whole.before or 1))


def _value(metric: str, comparison: Comparison) -> Difference:
    table, _, name = metric.partition(":")
    if metric == "iteration":
        return comparison.iteration
    if metric == "undisturbed":
        return comparison.undisturbed
    if metric == "mfu":
        return comparison.mfu
    if metric in comparison.breakdown:
        return comparison.breakdown[metric]
    if metric == "straggler":
        return Difference(
            max((row.before or 0.0 for row in comparison.stragglers), default=0.0),
            max((row.after or 0.0 for row in comparison.stragglers), default=0.0),
        )
    return _where_known(_of_gpu_work(metric, table, name, comparison), comparison)


def _of_gpu_work(metric: str, table: str, name: str, comparison: Comparison) -> Difference:
    if metric == "kernels":
        return _sum(comparison.kernels)
    if table == "kernel":
        return _sum(row for row in comparison.kernels if name in row.name)
    if table == "family":
        return _sum(row for row in comparison.families if row.name == name)
    if table == "module":
        return _sum(row for row in comparison.modules if row.name == name)
    return comparison.dimensions.get(metric, Difference(0.0, 0.0))


def _where_known(value: Difference, comparison: Comparison) -> Difference:
    """None on the side where the kernels are missing: nothing of something is no measurement."""
    compute = comparison.breakdown["compute"]
    return Difference(
        None if compute.before is None else value.before,
        None if compute.after is None else value.after,
    )


def _sum(rows: Iterable[WorkDifference]) -> Difference:
    before = after = 0.0
    for row in rows:
        before += row.time.before or 0.0
        after += row.time.after or 0.0
    return Difference(before, after)
