# SPDX-License-Identifier: Apache-2.0
"""Findings with their advice, the numbers behind them, and where to look."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from megatron.torch_trace.analysis.findings.consequences import introduced
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding
from megatron.torch_trace.report import sentences
from megatron.torch_trace.report.figures.time_budget import anchor_of, time_budget
from megatron.torch_trace.report.section import Section, Subject
from megatron.torch_trace.report.tables import At, at
from megatron.torch_trace.wording import duration, number, percent

_MOST_VALUES = 16
_OF_CPU = frozenset({"launch_bound", "synchronisation", "data_loader", "garbage_collection"})
"""Findings whose cause is on a rank's CPU."""
_SEVERITIES = {"high": "high", "medium": "medium", "low": "low", "info": "for information"}


@dataclass(frozen=True, slots=True)
class Shown:
    """One finding, its evidence as words."""

    code: str
    severity: str
    label: str
    title: str
    advice: str
    evidence: tuple[tuple[str, str], ...]
    at: At | None
    gain: str = ""
    is_of_cpu: bool = False
    anchor: str = ""
    below: tuple[Shown, ...] = ()
    follows: str = ""


def section(subject: Subject) -> Section:
    """The most severe first; that there is none is an answer too."""
    analysis = subject.analysis
    return Section(
        "findings", "Findings", data={"findings": cards(analysis), "budget": time_budget(analysis)}
    )


def cards(analysis: Analysis) -> list[Shown]:
    """One card a cause, what follows from it inside."""
    shown: list[Shown] = []
    names: set[str] = set()
    for one in analysis.findings:
        if one.cause in names and shown:
            shown[-1] = replace(shown[-1], below=(*shown[-1].below, _shown(one)))
        else:
            shown.append(_shown(one))
        names.add(one.name)
    return shown


def first(analysis: Analysis) -> Shown | None:
    """The most severe finding, if it is one to do something about."""
    found = analysis.findings[:1]
    return _shown(found[0]) if found and found[0].severity != "info" else None


def _shown(one: Finding) -> Shown:
    return Shown(
        one.code,
        one.severity,
        _SEVERITIES.get(one.severity, one.severity),
        one.title,
        one.advice,
        tuple((_label(key), _value(key, value)) for key, value in one.evidence.items()),
        at(*one.example) if one.example else None,
        sentences.gain(one).strip(),
        one.code in _OF_CPU or one.evidence.get("late_because") in ("cpu", "data"),
        anchor_of(one),
        follows=f"{introduced(one).rstrip(':')}:",
    )


def _label(key: str) -> str:
    return key.removesuffix("_ns").replace("_", " ")


def _value(key: str, value: object) -> str:
    if isinstance(value, Mapping):
        parts = [
            f"{_label(str(k))}: {_value(f'{k}' if '_' in str(k) else key, v)}"
            for k, v in list(value.items())[:_MOST_VALUES]
        ]
        more = len(value) - len(parts)
        return "; ".join(parts) + (f"; and {more:,} more in analyze --json" if more else "")
    if isinstance(value, (list, tuple)):
        shown = ", ".join(_value(key, one) for one in value[:_MOST_VALUES])
        more = len(value) - _MOST_VALUES
        return shown + (f", and {more:,} more in analyze --json" if more > 0 else "")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "unknown" if value is None else str(value)
    if key.endswith("_ns"):
        return duration(value)
    if "share" in key:
        return percent(value)
    return f"{value:,}" if isinstance(value, int) else number(value)
