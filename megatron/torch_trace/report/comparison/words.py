# SPDX-License-Identifier: Apache-2.0
"""Differences as people read them; always ms, so that a column can be compared."""

from __future__ import annotations

from megatron.torch_trace.analysis.compare.statistics import Difference
from megatron.torch_trace.format.breakdown_parts import BREAKDOWN_NAMES
from megatron.torch_trace.report.idle_words import IDLE_CAUSES
from megatron.torch_trace.wording import NONE, UNKNOWN, milliseconds

_PARTS = {
    **BREAKDOWN_NAMES,
    "communication": "all communication",
    "overlapped_communication": "overlapped communication",
    **{f"idle: {words.cause}": f"  idle: {words.title}" for words in IDLE_CAUSES},
}


def part_name(name: str) -> str:
    """`exposed_memory` -> `exposed copies`."""
    return _PARTS.get(name, name)


def pair(before: str, after: str) -> str:
    """`12.3 -> 4.5`; what is the same on both sides once."""
    return before if before == after else f"{before} -> {after}"


def signed(ns: float | None) -> str:
    """`+12.3`, `-0.45`, `0`."""
    if ns is None:
        return NONE
    text = milliseconds(abs(ns))
    return "0" if text in ("0", "<0.001") else f"{'+' if ns > 0 else '-'}{text}"


def change(part: Difference) -> str:
    """B - A in ms; of work, what only one side has counts as 0 on the other."""
    if part.before is None and part.after is None:
        return NONE
    return signed((part.after or 0.0) - (part.before or 0.0))


def known_change(part: Difference) -> str:
    """B - A in ms of what both sides have, if both know it: unknown is not 0."""
    return UNKNOWN if part.before is None or part.after is None else change(part)


def relative(part: Difference) -> str:
    """`+12 %`; `new`, `gone`; nothing where it is unknown."""
    if part.before is None or part.after is None:
        return "gone" if part.before is not None else "new" if part.after is not None else ""
    share = part.relative
    if share is None:
        return "new"
    value = 100 * share
    if abs(value) < 0.05:
        return "<0.1 %" if value else "0 %"
    return f"{value:+,.0f} %" if abs(value) >= 9.95 else f"{value:+.1f} %"


def interval(part: Difference) -> str:
    """`-12.3 .. +4.5`, ms."""
    if part.low is None or part.high is None:
        return NONE
    return f"{signed(part.low)} .. {signed(part.high)}"


def significant(part: Difference) -> str:
    """`yes`: noise does not explain it; `no`: noise may; `-`: too few samples."""
    if part.significant is None:
        return NONE
    return "yes" if part.significant else "no"
