# SPDX-License-Identifier: Apache-2.0
"""What is worth doing something about: one module is one finding.

A module of a finding has

    SLUG = "barriers"                            its stable name: the code, or the code's beginning
    def rule(analysis) -> Iterator[Finding]:     looks at a finished analysis and finds it, or not

A `Finding` comes with the numbers that made it, its own advice and the moment that shows it best;
the thresholds are the module's constants. A module that is put into one of the folders here is a
rule from then on; nothing else has to know of it but the table in docs/analyze.md.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from types import ModuleType

from megatron.torch_trace.analysis.findings.consequences import grouped, linked
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding

SEVERITIES = ("high", "medium", "low", "info")
LEAST_GAIN = 0.001
"""Of the iteration: nobody changes a training for less."""

Rule = Callable[[Analysis], Iterable[Finding]]


@cache
def modules() -> tuple[ModuleType, ...]:
    """Every module of a finding, by its path."""
    walked = pkgutil.walk_packages(__path__, f"{__name__}.")
    # What lies beside the folders serves them.
    found = sorted(one.name for one in walked if one.name.rpartition(".")[0] != __name__)
    return tuple(one for one in map(import_module, found) if hasattr(one, "SLUG"))


def by_gain(findings: Iterable[Finding], iteration_ns: float | None = None) -> tuple[Finding, ...]:
    """The largest gain first, then those without a known one as they are, then those for nothing.

    What a graph says would gain nothing costs nothing, however much time it takes; so does what
    would gain less than `LEAST_GAIN` of the iteration, if its length is given. What follows from
    another finding stands behind that one.
    """
    least = LEAST_GAIN * (iteration_ns or 0)

    def order(one: Finding) -> tuple[int, int]:
        if one.sure_gain_ns and one.sure_gain_ns >= least:
            return 0, -one.sure_gain_ns
        return (1, 0) if one.gain_ns is None else (2, 0)

    return grouped(findings, order)


def find(analysis: Analysis) -> tuple[Finding, ...]:
    """Every finding, the most severe first, of equal severity the one that concerns most time.

    What follows from another finding stands behind that one.
    """
    rules: list[Rule] = [module.rule for module in modules()]
    found = sorted((finding for rule in rules for finding in rule(analysis)), key=_by_severity)
    return grouped(linked(found, analysis), _by_severity)


def _by_severity(one: Finding) -> tuple[object, ...]:
    return SEVERITIES.index(one.severity), -one.share, one.code, one.title
