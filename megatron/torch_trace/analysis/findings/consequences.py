# SPDX-License-Identifier: Apache-2.0
"""Findings that only follow from another one: causes come first, what follows stands below."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from megatron.torch_trace.analysis.findings.communication.late_cause import DATA
from megatron.torch_trace.analysis.findings.late_ranks import late_ranks
from megatron.torch_trace.analysis.host.garbage_collections import COLLECTOR
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding

_MOSTLY = 0.5
"""Of the waits in a dimension, that the late ranks impose."""
_WAITING = 0.6
"""Of a dimension's time, from which on it is waiting and not transfer."""
_EXPOSED = "exposed_communication"
_ALIKE = frozenset({"memory_copies", "pageable_copies"})
"""Exposed copies, and copies that the CPU waits for: partly the same ones. Without all copies there
is none that the CPU waits for, so one gain contains the other."""


def linked(findings: Sequence[Finding], analysis: Analysis) -> list[Finding]:
    """The same findings, each that follows from another one with the name of its cause."""
    causes = {id(one): _cause(one, findings, analysis) for one in findings}
    return [
        replace(one, cause=cause.name) if (cause := causes[id(one)]) is not None else one
        for one in findings
    ]


def grouped(findings: Iterable[Finding], order: Callable[[Finding], object]) -> tuple[Finding, ...]:
    """Causes in an order, behind each what follows from it, in the same order."""
    ordered = sorted(findings, key=order)  # type: ignore[arg-type]
    names = {one.name for one in ordered}
    below: dict[str, list[Finding]] = {}
    top = []
    for one in ordered:
        if one.cause in names and one.cause != one.name:
            below.setdefault(str(one.cause), []).append(one)
        else:
            top.append(one)
    return tuple(member for one in top for member in _with_below(one, below))


def _with_below(one: Finding, below: dict[str, list[Finding]]) -> Iterable[Finding]:
    yield one
    for member in below.pop(one.name, ()):
        yield from _with_below(member, below)


def are_partly_the_same(one: Finding) -> bool:
    """Whether a finding that stands below another one is no consequence, but the same in part."""
    return one.code in _ALIKE


def introduced(one: Finding) -> str:
    """What a finding is to the one that it stands below; its code or sentence comes next."""
    return "Partly the same:" if are_partly_the_same(one) else "This causes"


def _cause(one: Finding, findings: Sequence[Finding], analysis: Analysis) -> Finding | None:
    for other in findings:
        if other is not one and _follows(one, other, analysis):
            return other
    return None


def _follows(one: Finding, other: Finding, analysis: Analysis) -> bool:
    """Whether `one` is there because of `other`."""
    if other.code == "straggler":
        late = set(late_ranks(other))
        if one.code.startswith(f"{_EXPOSED}_"):
            return _is_waiting_for(late, one, analysis)
        return one.code == "launch_bound" and set(one.evidence["cpu_idle_ns"]) <= late
    if other.code == "data_loader":
        return one.code == "straggler" and one.evidence.get("late_because") == DATA
    if {one.code, other.code} == _ALIKE:
        return (one.share, one.code) < (other.share, other.code)
    if other.code == "garbage_collection":
        return one.code == "launch_bound" and one.evidence.get("held_by") == COLLECTOR
    if other.code == "blocking_launches":
        return one.code == "launch_bound"
    if other.code == "launch_bound":
        return one.code == "tiny_kernels"
    if other.code == "layer_imbalance":
        return one.code == "uneven_stages"
    return other.code == "pipeline_bubble" and one.code == f"{_EXPOSED}_pp"


def _is_waiting_for(late: set[int], one: Finding, analysis: Analysis) -> bool:
    """Whether communication of a dimension is mostly waiting, and mostly for these ranks."""
    waiting = one.evidence.get("waiting_share")
    if waiting is None or waiting < _WAITING:
        return False
    imposed = {
        straggler.rank: sum(
            row.imposed_wait_ns
            for row in straggler.by_collective
            if row.dimension == one.evidence["dimension"]
        )
        for straggler in analysis.stragglers
    }
    by_these = sum(time for rank, time in imposed.items() if rank in late)
    return by_these >= _MOSTLY * max(1, sum(imposed.values()))
