# SPDX-License-Identifier: Apache-2.0
"""The critical path as a strip: its parts in their order, each as wide as it is long."""

from __future__ import annotations

from dataclasses import dataclass

from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.report.tables import At, at
from megatron.torch_trace.wording import duration, percent

_DECIMALS = 3
_LEAST_NAMED = 4.0
"""Width in % from which on a part has room for words."""
KINDS = (("cpu", "CPU"), ("compute", "GPU computes or copies"), ("communication", "communication"))


@dataclass(frozen=True, slots=True)
class StripPart:
    """A part of the path: left and width in % of the whole, and what a click on it shows."""

    left: float
    width: float
    kind: str
    label: str
    told: str
    at: At | None = None


@dataclass(frozen=True, slots=True)
class PathStrip:
    """The strip.

    Args:
        parts: in the path's order.
        shares: (kind, words, share) of the whole path.
    """

    parts: tuple[StripPart, ...]
    shares: tuple[tuple[str, str, str], ...]


def path_strip(analysis: Analysis) -> PathStrip | None:
    """None where no graph of kernels was asked for, or could be made."""
    whole = sum(one.time_ns for one in analysis.critical_path)
    if not whole:
        return None
    parts, before = [], 0
    for one in analysis.critical_path:
        width = round(100 * one.time_ns / whole, _DECIMALS)
        again = f", {one.count} times" if one.count > 1 else ""
        parts.append(
            StripPart(
                round(100 * before / whole, _DECIMALS),
                width,
                one.kind,
                f"{one.name} (rank {one.rank})" if width >= _LEAST_NAMED else "",
                f"rank {one.rank}, {one.kind}: {one.name}, {duration(one.time_ns)}{again}, "
                f"{percent(one.time_ns / whole)} of the path",
                at(one.rank, one.longest),
            )
        )
        before += one.time_ns
    times = {
        kind: sum(one.time_ns for one in analysis.critical_path if one.kind == kind)
        for kind, _ in KINDS
    }
    shares = tuple(
        (kind, words, percent(times[kind] / whole)) for kind, words in KINDS if times[kind]
    )
    return PathStrip(tuple(parts), shares)
