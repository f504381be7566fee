# SPDX-License-Identifier: Apache-2.0
"""What is worth doing something about: rules with numbers, each in the module of its topic.

A rule looks at a finished analysis and returns findings or none. No finding comes without the
number that made it; the thresholds are the constants of each module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from megatron.torch_trace.analysis.findings import (
    communication,
    gpu_record,
    host,
    kernels,
    layers,
    pipeline,
    recording,
    stragglers,
)
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding

SEVERITIES = ("high", "medium", "low", "info")

RULES: tuple[Callable[[Analysis], Iterable[Finding]], ...] = (
    *recording.RULES,
    *gpu_record.RULES,
    *stragglers.RULES,
    *communication.RULES,
    *host.RULES,
    *pipeline.RULES,
    *layers.RULES,
    *kernels.RULES,
)


def find(analysis: Analysis) -> tuple[Finding, ...]:
    """Every finding, the most severe first, of equal severity the one that concerns most time."""
    found = [finding for rule in RULES for finding in rule(analysis)]
    return tuple(
        sorted(found, key=lambda f: (SEVERITIES.index(f.severity), -f.share, f.code, f.title))
    )
