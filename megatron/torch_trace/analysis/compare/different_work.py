# SPDX-License-Identifier: Apache-2.0
"""Whether two runs do the same work: a run that does less is no faster for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from megatron.torch_trace.analysis.compare.tables import CommunicationDifference, WorkDifference
from megatron.torch_trace.analysis.results.analysis import Analysis

FLOPS, KERNELS, BYTES = "model FLOPs", "kernels", "bytes"
_COUNTED = ("gemm", "attention")
"""Families whose number follows from the model: layers, micro-batches, sizes of the groups."""
_LEAST = {FLOPS: 0.005, KERNELS: 0.02, BYTES: 0.10}
"""Shares from which on two amounts differ; padding and buckets change a few bytes."""


@dataclass(frozen=True, slots=True)
class WorkAmount:
    """An amount of work that A and B do not have in common.

    Args:
        kind: `model FLOPs` of an iteration over all ranks; `kernels`, how many a rank runs in an
            iteration; `bytes` that a rank communicates in an iteration.
        of: family of the kernels, dimension of the communication; "" of FLOPs.
        before, after: in A and in B.
    """

    kind: str
    of: str
    before: float
    after: float


def different_work(
    a: Analysis,
    b: Analysis,
    families: Sequence[WorkDifference],
    communication: Sequence[CommunicationDifference],
) -> tuple[WorkAmount, ...]:
    """What shows that the work is not the same; nothing where either side does not tell.

    Args:
        a, b: the analyses.
        families: their kernels by family.
        communication: their collectives.
    """
    found = [*_flops(a, b), *_kernels(families), *_bytes(communication)]
    return tuple(one for one in found if _differs(one))


def _differs(one: WorkAmount) -> bool:
    larger = max(one.before, one.after)
    return abs(one.after - one.before) > _LEAST[one.kind] * larger


def _flops(a: Analysis, b: Analysis) -> Iterable[WorkAmount]:
    if a.mfu.model_flops and b.mfu.model_flops:
        yield WorkAmount(FLOPS, "", a.mfu.model_flops, b.mfu.model_flops)


def _kernels(families: Sequence[WorkDifference]) -> Iterable[WorkAmount]:
    calls = {row.name: (row.calls.before or 0.0, row.calls.after or 0.0) for row in families}
    # Without any kernel on a side, that side knows nothing of its GPU.
    if not all(any(both[side] for both in calls.values()) for side in (0, 1)):
        return
    for family in _COUNTED:
        if family in calls:
            yield WorkAmount(KERNELS, family, *calls[family])


def _bytes(communication: Sequence[CommunicationDifference]) -> Iterable[WorkAmount]:
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    unknown = set()
    for row in communication:
        for side, (calls, size) in enumerate(
            ((row.calls.before, row.bytes.before), (row.calls.after, row.bytes.after))
        ):
            if calls and size is None:
                unknown.add(row.dimension)
            totals[row.dimension][side] += size or 0.0
    for dimension, (before, after) in totals.items():
        # A dimension that only one of them has is of another layout, which is named elsewhere.
        if dimension not in unknown and before and after:
            yield WorkAmount(BYTES, dimension, before, after)
