# SPDX-License-Identifier: Apache-2.0
"""What the iteration could not avoid, what a change would do, and how two windows differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from megatron.torch_trace.agent.overview import ms
from megatron.torch_trace.agent.pages import answer
from megatron.torch_trace.agent.recording import Recording
from megatron.torch_trace.analysis.compare.comparison import compare as compare_analyses
from megatron.torch_trace.analysis.compare.statistics import Difference
from megatron.torch_trace.analysis.replay.answers import PathPiece
from megatron.torch_trace.analysis.run.whatif import WhatIf, whatif
from megatron.torch_trace.errors import UsageError

_MOST_CHANGES = 8
_MOST_ROWS = 12


def critical_path(recording: Recording, page: int) -> str:
    """The chain of work over ranks, and which changes would shorten it."""
    found = recording.prediction
    return answer(_facts(found), [*_candidates(found), *_path(found.critical_path)], page)


def what_if(recording: Recording, changes: Sequence[str], page: int) -> str:
    """The iteration after changes, such as `--rank 2=median`."""
    if not changes:
        return critical_path(recording, page)
    if len(changes) > _MOST_CHANGES:
        raise UsageError(f"{len(changes)} changes: ask for at most {_MOST_CHANGES} at a time.")
    found = whatif(recording.path, *changes)
    return answer(_facts(found), [*_candidates(found), *_path(found.critical_path)], page)


def _facts(found: WhatIf) -> dict[str, Any]:
    return {
        "changes": list(found.changes) or None,
        "graph_of": found.graph,
        "ranks": found.ranks,
        "recorded_step_ms": ms(found.recorded_ns),
        "simulated_step_ms": ms(found.simulated_ns),
        "error_ms": ms(found.error_ns),
        "undisturbed_step_ms": ms(found.undisturbed_ns),
        "notes": list(found.notes[:4]) or None,
        "times": "of a step, the mean over the recorded ones",
    }


def _candidates(found: WhatIf) -> Iterable[dict[str, Any]]:
    for one in found.candidates:
        yield {
            "change": one.change,
            "finding": one.finding,
            "step_ms": ms(one.iteration_ns),
            "gain_ms": ms(one.gain_ns),
            "error_ms": ms(one.error_ns),
            "larger_than_its_error": one.is_distinguishable,
        }


def _path(pieces: Sequence[PathPiece]) -> Iterable[dict[str, Any]]:
    for one in pieces:
        yield {"on_path_rank": one.rank, "kind": one.kind, "name": one.name, "ms": ms(one.time_ns)}


def compare(recording: Recording, other: Recording | None, page: int) -> str:
    """How the other window differs from this one, an iteration and rank."""
    if other is None:
        raise UsageError(
            "there is nothing to compare with: this server was started for one window; start it "
            "as torch-trace mcp PATH OTHER."
        )
    found = compare_analyses(recording.analysis, other.analysis)
    facts: dict[str, Any] = {
        "a": recording.path.name,
        "b": other.path.name,
        "different_work": [asdict(one) for one in found.different_work[:4]] or None,
        "straggler": {"a": found.straggler_before, "b": found.straggler_after},
        "appeared": [f"{one.code}: {one.title}" for one in found.appeared[:6]] or None,
        "vanished": [f"{one.code}: {one.title}" for one in found.vanished[:6]] or None,
        "times": "of a step and rank",
    }
    rows = [{"what": "iteration", **_difference(found.iteration)}]
    rows += [{"what": name, **_difference(one)} for name, one in found.breakdown.items()]
    rows += [{"what": f"exposed {n}", **_difference(one)} for n, one in found.dimensions.items()]
    for late in found.stragglers[:_MOST_ROWS]:
        rows.append(
            {
                "what": "each other rank waits for this one",
                "rank": late.rank,
                "a_ms": ms(late.before),
                "b_ms": ms(late.after),
                "mostly": late.mostly,
            }
        )
    for table in ("communication", "families", "phases", "module_classes", "kernels"):
        for row in getattr(found, table)[:_MOST_ROWS]:
            rows.append({"what": table, **_row(row)})
    return answer(facts, rows, page)


def _row(row: Any) -> dict[str, Any]:
    values = {name: getattr(row, name) for name in row.__slots__}
    shown = {name: value for name, value in values.items() if isinstance(value, (str, int))}
    time = values.get("time")
    return {**shown, **(_difference(time) if isinstance(time, Difference) else {})}


def _difference(one: Difference) -> dict[str, Any]:
    return {
        "a_ms": ms(one.before),
        "b_ms": ms(one.after),
        "change_ms": ms(one.change),
        "sure": one.significant,
    }
