# SPDX-License-Identifier: Apache-2.0
"""The roofline as a picture: both ceilings and a point for each variant, on logarithmic axes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from megatron.torch_profile.component.measure.ceilings import Ceilings
from megatron.torch_profile.component.results import Answer, Result
from megatron.torch_trace.wording import number

WIDTH, HEIGHT = 640, 320
_LEFT, _BOTTOM, _TOP, _RIGHT = 56, 36, 12, 28
_LETTER, _LINE, _BESIDE = 7, 13, 9
"""Width and height of a label's text, roughly, and how far from its point it begins."""


@dataclass(frozen=True, slots=True)
class Point:
    """One variant: where it is, what it says, and where its label begins."""

    x: float
    y: float
    name: str
    told: str
    label_x: float
    label_y: float


@dataclass(frozen=True, slots=True)
class Chart:
    """What a template draws.

    Args:
        roofs: for each dtype the points of its line, and its name.
        marks_x, marks_y: (position, words) of the axes.
    """

    roofs: tuple[tuple[str, str], ...]
    points: tuple[Point, ...]
    marks_x: tuple[tuple[float, str], ...]
    marks_y: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True)
class _Axes:
    x: tuple[int, int]
    y: tuple[int, int]

    def at_x(self, value: float) -> float:
        low, high = self.x
        return round(_LEFT + (math.log10(value) - low) / (high - low) * (WIDTH - _LEFT - _RIGHT), 1)

    def at_y(self, value: float) -> float:
        low, high = self.y
        part = (math.log10(value) - low) / (high - low)
        return round(HEIGHT - _BOTTOM - part * (HEIGHT - _BOTTOM - _TOP), 1)


def chart(answer: Answer) -> Chart | None:
    """None if no variant has FLOPs that torch counts."""
    drawn = [one for one in answer.results if one.roof_share and one.work and one.work.flops]
    if not drawn:
        return None
    roofs = {one.ceilings.dtype: one.ceilings for one in drawn if one.ceilings}
    spots = [(one, *_spot(one)) for one in drawn]
    ridges = [roof.flops_per_s / roof.bytes_per_s for roof in roofs.values()]
    rates = [roof.flops_per_s for roof in roofs.values()]
    axes = _Axes(
        _decades([x for _, x, _ in spots] + ridges), _decades([y for _, _, y in spots] + rates)
    )
    return Chart(
        roofs=tuple((_line(roof, axes), dtype) for dtype, roof in roofs.items()),
        points=_labelled([_point(one, x, y, axes) for one, x, y in spots]),
        marks_x=tuple((axes.at_x(10.0**n), number(10.0**n)) for n in range(*_ends(axes.x))),
        marks_y=tuple(
            (axes.at_y(10.0**n), number(10.0 ** (n - 12))) for n in range(*_ends(axes.y))
        ),
    )


def _spot(one: Result) -> tuple[float, float]:
    assert one.work is not None
    assert one.summary is not None
    return one.work.flops / max(1, one.work.bytes), 1e9 * one.work.flops / one.summary.median


def _point(one: Result, x: float, y: float, axes: _Axes) -> Point:
    told = f"{one.case.name}: {number(y / 1e12)} TFLOP/s at {number(x)} FLOP a byte"
    across, down, name = axes.at_x(x), axes.at_y(y), one.case.name
    wide = _LETTER * len(name)
    beside = across + _BESIDE
    if beside + wide > WIDTH:  # no room: before the point
        beside = across - _BESIDE - wide
    return Point(across, down, name, told, round(beside, 1), round(down + _LINE / 3, 1))


def _labelled(points: list[Point]) -> tuple[Point, ...]:
    """With no label on another one: from the top, each below those that it would cover."""
    placed: dict[int, Point] = {}
    for n in sorted(range(len(points)), key=lambda n: points[n].y):
        one = points[n]
        while any(_covers(one, other) for other in placed.values()):
            one = replace(one, label_y=round(one.label_y + _LINE, 1))
        placed[n] = one
    return tuple(placed[n] for n in range(len(points)))


def _covers(one: Point, other: Point) -> bool:
    first, last = sorted((one, other), key=lambda point: point.label_x)
    over = first.label_x + _LETTER * len(first.name) > last.label_x
    return over and abs(one.label_y - other.label_y) < _LINE


def _line(roof: Ceilings, axes: _Axes) -> str:
    low, high = 10.0 ** axes.x[0], 10.0 ** axes.x[1]
    ridge = roof.flops_per_s / roof.bytes_per_s
    least = 10.0 ** axes.y[0]
    begin = max(low, least / roof.bytes_per_s)
    corners = [
        (begin, begin * roof.bytes_per_s),
        (ridge, roof.flops_per_s),
        (high, roof.flops_per_s),
    ]
    return " ".join(f"{axes.at_x(x)},{axes.at_y(y)}" for x, y in corners)


def _decades(values: list[float]) -> tuple[int, int]:
    logs = [math.log10(one) for one in values if one > 0]
    low, high = math.floor(min(logs)), math.ceil(max(logs))
    return low, max(high, low + 1)


def _ends(decades: tuple[int, int]) -> tuple[int, int]:
    return decades[0], decades[1] + 1
