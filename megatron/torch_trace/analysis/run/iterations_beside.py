# SPDX-License-Identifier: Apache-2.0
"""What the file beside a trace adds: iterations after the window, which the trace cannot know."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from megatron.torch_trace.analysis.run.rank import RankOutcome
from megatron.torch_trace.files.json_object import read_object
from megatron.torch_trace.format.undisturbed_iterations import UndisturbedIterations, beside


def with_iterations_beside(outcome: RankOutcome, trace: Path) -> RankOutcome:
    """The outcome with what lies beside its trace, if that is of this rank, run and window."""
    told = _read(beside(trace))
    if not told or not _is_of(outcome, told):
        return outcome
    pairs = told.get("undisturbed")
    found = UndisturbedIterations.of(pairs if isinstance(pairs, list) else ())
    result = outcome.result
    return replace(outcome, result=replace(result, undisturbed=result.undisturbed.joined(found)))


def _read(path: Path) -> dict[str, Any]:
    """Nothing where it is not there or is no such file: then the trace alone tells."""
    with suppress(OSError, ValueError):
        return read_object(path)
    return {}


def _is_of(outcome: RankOutcome, told: dict[str, Any]) -> bool:
    window = told.get("window")
    if outcome.rank != told.get("rank") or not isinstance(window, dict):
        return False
    if outcome.run is not None and outcome.run != told.get("run"):
        return False
    first, last = window.get("first"), window.get("last")
    return (
        isinstance(first, int)
        and isinstance(last, int)
        and all(first <= step.step <= last for step in outcome.result.steps)
    )
