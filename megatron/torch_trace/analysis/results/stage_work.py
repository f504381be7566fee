# SPDX-License-Identifier: Apache-2.0
"""Modules over ranks: what each pipeline stage has to compute, by layer and by class.

Everything is GPU time of one iteration without communication, whose length is also waiting:

    stage 0    embedding | layer | layer | layer |                   total
    stage 1              | layer | layer | layer | output and loss   total, the slowest holds all
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from megatron.torch_trace.analysis.modules.ranges import holders
from megatron.torch_trace.analysis.modules.rows import ModuleRow

if TYPE_CHECKING:
    from megatron.torch_trace.analysis.results.analysis import RankResult

_NUMBERED = re.compile(r"(?:.*\.)?\d+")
_LAYER = re.compile(r".*(?:Layer|Block)")
_LONE_LAYER = re.compile(r".*Layer")
_EMBEDDING = "Embedding"
_PER_TERA = 1e-3
"""TFLOP/s of one FLOP a ns."""


@dataclass(frozen=True, slots=True)
class PartWork:
    """One layer or one class of modules on a stage; means over its ranks, of one iteration.

    Args:
        name: path of the layer on the stage, or the class.
        forward_ns, backward_ns, recompute_ns: GPU work, communication included.
        communication_ns: of these, communication.
        exposed_communication_ns: of that, beside which nothing computes.
        tflops: as in `ModuleRow`; None if unknown on any rank, or if there are no FLOPs.
    """

    name: str
    forward_ns: float
    backward_ns: float
    recompute_ns: float
    communication_ns: float
    exposed_communication_ns: float
    tflops: float | None

    @property
    def work_ns(self) -> float:
        """GPU time without communication."""
        return self.forward_ns + self.backward_ns + self.recompute_ns - self.communication_ns


@dataclass(frozen=True, slots=True)
class StageWork:
    """One pipeline stage; means over its ranks, of one iteration, without communication.

    Args:
        stage: its number.
        ranks: whose traces tell of it.
        layers: in the order of the model; virtual stages one after the other.
        classes: of modules, by time.
        layers_ns: all layers.
        embedding_ns: embeddings outside of layers.
        other_ns: other modules, the output layer for one, and what micro-batches launch outside of
            modules, the loss for one.
        total_ns: the sum of the three.
    """

    stage: int
    ranks: tuple[int, ...]
    layers: tuple[PartWork, ...]
    classes: tuple[PartWork, ...]
    layers_ns: float
    embedding_ns: float
    other_ns: float
    total_ns: float


def stage_work(ranks: Sequence[RankResult]) -> tuple[StageWork, ...]:
    """Every stage of which a trace tells modules, in order; a job without pipeline is one stage.

    Source: docs/computed.md, "Stages".
    """
    stages: dict[int, list[RankResult]] = {}
    # A rank whose GPU was not recorded has modules without work, which is not known to be none.
    for rank in [one for one in ranks if one.breakdown is not None] or ranks:
        if rank.modules:
            stages.setdefault(_stage_of(rank), []).append(rank)
    return tuple(_work(stage, of) for stage, of in sorted(stages.items()))


def _stage_of(rank: RankResult) -> int:
    known = next((one.stage for one in rank.pipeline if one.stage is not None), 0)
    return rank.coordinates.get("pp", known)


def _work(stage: int, ranks: list[RankResult]) -> StageWork:
    layers = _parts(ranks, [(row.module, row) for rank in ranks for row in _layers(rank)])
    in_layers = sum(part.work_ns for part in layers)
    embedding = sum(sum(map(_computing, _embeddings(r))) / _steps(r) for r in ranks) / len(ranks)
    total = sum(_everything(rank) / _steps(rank) for rank in ranks) / len(ranks)
    return StageWork(
        stage=stage,
        ranks=tuple(rank.rank for rank in ranks),
        layers=tuple(sorted(layers, key=lambda part: _in_order(part.name))),
        classes=_parts(ranks, [(row.type, row) for rank in ranks for row in rank.module_classes]),
        layers_ns=in_layers,
        embedding_ns=embedding,
        other_ns=total - in_layers - embedding,
        total_ns=total,
    )


def _steps(rank: RankResult) -> int:
    return max(len(rank.steps), 1)


def _parts(ranks: list[RankResult], rows: Iterable[tuple[str, ModuleRow]]) -> tuple[PartWork, ...]:
    by_name: dict[str, list[ModuleRow]] = {}
    for name, row in rows:
        by_name.setdefault(name, []).append(row)
    # All ranks of a stage have the same modules, and the same steps but for damaged traces.
    count = sum(map(_steps, ranks))
    found = [
        PartWork(
            name=name,
            forward_ns=sum(row.time_ns for row in of) / count,
            backward_ns=sum(row.backward_time_ns for row in of) / count,
            recompute_ns=sum(row.recompute_time_ns for row in of) / count,
            communication_ns=sum(row.communication_ns for row in of) / count,
            exposed_communication_ns=sum(row.exposed_communication_ns for row in of) / count,
            tflops=_tflops(of),
        )
        for name, of in by_name.items()
    ]
    return tuple(sorted(found, key=lambda part: (-part.work_ns, part.name)))


def _tflops(rows: list[ModuleRow]) -> float | None:
    flops, time = 0, 0
    for row in rows:
        passes = (row.flops, row.backward_flops, row.recompute_flops)
        if None in passes:
            return None
        flops += sum(one or 0 for one in passes)
        time += _computing(row)
    return flops / time * _PER_TERA if flops and time else None


def _layers(rank: RankResult) -> list[ModuleRow]:
    """Layers that are inside no other one."""
    found = {row.module: row for row in rank.modules if _is_layer(row)}
    return [row for path, row in found.items() if not any(one in found for one in holders(path))]


def _is_layer(row: ModuleRow) -> bool:
    return _names_layer(row.module, row.type)


@lru_cache(maxsize=1 << 14)
def _names_layer(module: str, kind: str) -> bool:
    # All ranks of a stage have the same names.
    numbered = _NUMBERED.fullmatch(module) and _LAYER.fullmatch(kind)
    return bool(numbered or _LONE_LAYER.fullmatch(kind))


def _embeddings(rank: RankResult) -> list[ModuleRow]:
    """Embeddings that are inside neither a layer nor another one."""
    mine = {row.module: row for row in rank.modules if _EMBEDDING in row.type}
    inside = {*mine, *(row.module for row in rank.modules if _is_layer(row))}
    return [row for path, row in mine.items() if not any(one in inside for one in holders(path))]


def _everything(rank: RankResult) -> int:
    account = rank.module_account
    if account is None:
        return 0
    modules = account.gpu_ns - account.unattributed_ns - account.communication_ns
    return modules + account.microbatch_loose_compute_ns


def _computing(row: ModuleRow) -> int:
    return row.total_ns - row.communication_ns


def _in_order(path: str) -> list[tuple[int, str]]:
    """Parts of a path, numbers as numbers."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in path.split(".")]
