# SPDX-License-Identifier: Apache-2.0
"""What each pipeline stage has to compute: its parts, its layers one by one, classes of modules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.analysis.results.stage_work import PartWork, StageWork
from megatron.torch_trace.report.tables import (
    At,
    Cell,
    Column,
    Medium,
    Row,
    Table,
    amount,
    at,
    in_json,
    ms,
    number,
    some_ms,
    text,
)
from megatron.torch_trace.wording import duration, flop_rate, milliseconds, ranks

_MOST_CLASSES = 300


@dataclass(frozen=True, slots=True)
class Bar:
    """One layer: its height from 0 to 1."""

    height: float
    told: str
    at: At | None


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers of a stage."""

    label: str
    bars: tuple[Bar, ...]


def tables(analysis: Analysis) -> tuple[Table | None, Table | None]:
    """Stages, where there are several, and classes of modules."""
    stages = analysis.stages
    return _stages(stages) if len(stages) > 1 else None, _classes(stages)


def figure(analysis: Analysis) -> dict[str, Any]:
    """The layers of each stage as bars on one scale; nothing where no layers are known."""
    stages = analysis.stages
    works = [layer.work_ns for stage in stages for layer in stage.layers]
    if not works:
        return {}
    span = " to ".join(dict.fromkeys(milliseconds(end(works)) for end in (min, max)))
    return {
        "layers": [_layers(stage, max(works), analysis) for stage in stages if stage.layers],
        "caption": f"GPU time of each layer in an iteration, without communication: {span} ms. "
        + (
            "The other stages wait for the stage whose layers add up to most."
            if len(stages) > 1
            else "Look below for a layer that stands out."
        ),
    }


def _stages(stages: Sequence[StageWork]) -> Table:
    columns = (
        Column("stage"),
        Column("ranks", number=False, cut=True),
        Column("layers"),
        Column("one layer ms", brief="one layer", hint="mean of the layers"),
        Column("layers ms", brief="all layers"),
        Column("embedding ms", brief="embedding"),
        Column("other ms", brief="other", hint="output layer, loss and the like"),
        Column("total ms", brief="total"),
    )
    rows = tuple(
        Row(
            (
                number(one.stage, str(one.stage)),
                text(ranks(one.ranks)),
                amount(len(one.layers)),
                ms(one.layers_ns / len(one.layers) if one.layers else None),
                some_ms(one.layers_ns),
                some_ms(one.embedding_ns),
                some_ms(one.other_ns),
                ms(one.total_ns),
            )
        )
        for one in stages
    )
    return Table(
        "stage-work",
        "GPU work of each stage in an iteration, without communication; means over its ranks",
        columns,
        rows,
        brief="STAGES (GPU work of modules, ms an iteration without communication)",
        most=16,
        limit=32,
    ).without_empty(2)


def _classes(stages: Sequence[StageWork]) -> Table | None:
    found = [(one.stage, part) for one in stages for part in one.classes if part.work_ns]
    if not found:
        return None
    columns = (
        Column("class", number=False),
        Column("stage"),
        Column("forward ms"),
        Column("recompute ms"),
        Column("backward ms"),
        Column("comm ms", hint="communication, part of these times"),
        Column("exposed comm ms"),
        Column("TFLOP/s"),
    )
    found.sort(key=lambda entry: -entry[1].work_ns)
    rows = tuple(Row(_class(stage, part)) for stage, part in found[:_MOST_CLASSES])
    more = len(found) - len(rows)
    caption = (
        "GPU work by class of module in an iteration, modules below included; means over ranks"
    )
    return Table(
        "classes", caption, columns, rows, in_json(more), media=Medium.WRITTEN
    ).without_empty(2)


def _class(stage: int, part: PartWork) -> tuple[Cell, ...]:
    return (
        text(part.name),
        number(stage, str(stage)),
        some_ms(part.forward_ns),
        some_ms(part.recompute_ns),
        some_ms(part.backward_ns),
        some_ms(part.communication_ns),
        some_ms(part.exposed_communication_ns),
        Cell(flop_rate(part.tflops), sort=part.tflops),
    )


def _layers(stage: StageWork, most: float, analysis: Analysis) -> Layers:
    of_stage = frozenset(stage.ranks)
    lowest = next((rank for rank in analysis.ranks if rank.rank in of_stage), None)
    rows = {row.module: row.longest for row in lowest.modules} if lowest else {}
    bars = tuple(
        Bar(
            layer.work_ns / most if most else 0.0,
            f"stage {stage.stage}, {layer.name}: {duration(layer.work_ns)}; forward "
            f"{duration(layer.forward_ns)}, backward {duration(layer.backward_ns)}, recompute "
            f"{duration(layer.recompute_ns)}, of which communication "
            f"{duration(layer.communication_ns)}",
            at(lowest.rank if lowest else None, rows.get(layer.name)),
        )
        for layer in stage.layers
    )
    return Layers(f"stage {stage.stage}", bars)
