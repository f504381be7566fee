# SPDX-License-Identifier: Apache-2.0
"""Bandwidth over the size of a message, both on logarithmic scales."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log10

from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.report.figures.link_speeds import NETWORK, LinkSpeed, link_of
from megatron.torch_trace.report.tables import At, at
from megatron.torch_trace.wording import number, size

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 34, 26, 38


@dataclass(frozen=True, slots=True)
class Point:
    """One line of the table of communication: a mean message."""

    x: float
    y: float
    dimension: str
    told: str
    bytes: float
    busbw_gbps: float
    at: At | None


@dataclass(frozen=True, slots=True)
class Mark:
    """A place on an axis, or a link's speed, with its words."""

    at: float
    words: str


@dataclass(frozen=True, slots=True)
class MessageFigure:
    """Points, the axes' marks, and lines of what the hardware could carry."""

    points: tuple[Point, ...]
    x_marks: tuple[Mark, ...]
    y_marks: tuple[Mark, ...]
    links: tuple[Mark, ...]
    dimensions: tuple[str, ...]
    sources: str
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    bottom: int = HEIGHT - BOTTOM


@dataclass(frozen=True, slots=True)
class _Scale:
    """A logarithmic axis from one power of ten to another."""

    first: int
    last: int
    start: float
    end: float

    def at(self, value: float) -> float:
        """Where a value is drawn."""
        part = (log10(value) - self.first) / max(1, self.last - self.first)
        return round(self.start + (self.end - self.start) * part, 1)

    @property
    def powers(self) -> list[float]:
        """The powers of ten on it."""
        return [10.0**n for n in range(self.first, self.last + 1)]


def message_figure(analysis: Analysis) -> MessageFigure | None:
    """Only of calls whose waiting is known, and taken away; None if there are none."""
    rows = [
        row
        for row in analysis.summary.communication
        if row.bytes and row.calls and row.busbw_gbps and row.wait_ns is not None
    ]
    if not rows:
        return None
    sizes = [(row.bytes or 0) / row.calls for row in rows]
    speeds = [row.busbw_gbps or 0.0 for row in rows]
    links = _links(analysis)
    x = _scale(sizes, LEFT, WIDTH - RIGHT)
    y = _scale([*speeds, *(one.gbps for one in links)], HEIGHT - BOTTOM, TOP)
    points = tuple(
        Point(
            x.at(each),
            y.at(speed),
            row.dimension,
            f"{row.dimension} {row.collective.replace('_', ' ')}: {size(each)} a call, "
            f"{number(speed)} GB/s busbw",
            each,
            speed,
            at(row.longest_rank, row.longest),
        )
        for row, each, speed in zip(rows, sizes, speeds, strict=True)
    )
    return MessageFigure(
        points,
        tuple(Mark(x.at(one), size(one)) for one in x.powers[:: 1 + len(x.powers) // 8]),
        tuple(Mark(y.at(one), f"{one:g}") for one in y.powers),
        tuple(Mark(y.at(one.gbps), f"{one.name}: {one.gbps:g} GB/s") for one in links),
        tuple(dict.fromkeys(row.dimension for row in rows)),
        "; ".join(f"{one.name}: {one.source}" for one in links),
    )


def _scale(values: list[float], start: float, end: float) -> _Scale:
    first, last = floor(log10(min(values))), floor(log10(max(values))) + 1
    return _Scale(first, last, start, end)


def _links(analysis: Analysis) -> list[LinkSpeed]:
    """What the GPUs of one host have between them, and beyond a host one port of a network."""
    first = analysis.ranks[0]
    found = [link for link in (link_of(first.device),) if link is not None]
    hosts = {rank.host_name for rank in analysis.ranks} - {None}
    return [*found, NETWORK] if len(hosts) > 1 and found else found
