# SPDX-License-Identifier: Apache-2.0
"""What an icicle is: below each part what lies in it, each as wide as its time."""

from __future__ import annotations

from dataclasses import dataclass

from megatron.torch_trace.report.tables import At

DECIMALS = 2
LEAST_WIDTH, LEAST_NAMED = 0.3, 3.0
"""In %: what is narrower cannot be seen, or cannot be read."""


@dataclass(frozen=True, slots=True)
class Icicle:
    """One part; left and width are % of the whole.

    Args:
        depth: 0 of the outermost parts.
        colour: its class; "" for the plain one.
    """

    left: float
    width: float
    depth: int
    label: str
    told: str
    colour: str
    at: At | None


@dataclass(frozen=True, slots=True)
class IcicleFigure:
    """Of one rank.

    Args:
        rows: levels.
        told: how to read it, sentences.
        legend: (colour, words) of the parts.
    """

    caption: str
    rows: int
    parts: tuple[Icicle, ...]
    told: str
    legend: tuple[tuple[str, str], ...] = ()
