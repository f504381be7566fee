# SPDX-License-Identifier: Apache-2.0
"""Which operator of the forward pass an operator of the backward pass belongs to.

Autograd numbers the nodes of each thread. torch notes the number at the operator that makes the
node and, with a number of the thread, where the node runs:

    main thread       aten::mm         sequence 7, forward thread 0
    autograd's        MmBackward0      sequence 7, forward thread 1

Torch's numbers of threads are not the trace's. The main thread is not always 1, and recomputed
operators are made on autograd's own thread, so names tell which is which: `aten::mm` made what
`MmBackward0` runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.analysis.timeline.code_columns import codes_of, rows_with
from megatron.torch_trace.analysis.timeline.rows import NONE, Numbered
from megatron.torch_trace.columns.intervals import Ints, ints
from megatron.torch_trace.format.integer_arrays import distinct

if TYPE_CHECKING:
    from megatron.torch_trace.analysis.timeline.activity import Activity

_BACKWARD = re.compile(r"backward\d*$")
_ENGINE = "autograd::engine::evaluate_function: "
_ACCUMULATE = "AccumulateGrad"


@lru_cache(maxsize=1 << 14)
def stem(name: str) -> str:
    """What the names of a node's two operators share: `aten::_softmax`, `SoftmaxBackward0`."""
    plain = name.rsplit(": ", 1)[-1].rsplit("::", 1)[-1].lower().replace("_", "")
    return _BACKWARD.sub("", plain)


def runs_backward(activity: Activity) -> npt.NDArray[np.bool_]:
    """Which rows of `activity.ops` run a node of the backward pass."""
    ops = activity.ops
    found = engine_runs(ops, activity.names)
    found |= (ops.sequence != NONE) & (ops.forward_thread > 0)
    return found


def engine_runs(ops: Numbered, names: list[str]) -> npt.NDArray[np.bool_]:
    """Which operators are autograd's engine at work on one node: they enclose all that it does."""
    return _named(ops, names, lambda name: name.startswith(_ENGINE))


def accumulates(name: str) -> bool:
    """Whether an operator adds a finished gradient to that of a parameter."""
    return name.startswith(_ENGINE) and name.endswith(_ACCUMULATE)


def forward_operators(ops: Numbered, names: list[str]) -> Ints:
    """For each row of `ops`, the row that made the node it runs; NONE if unknown.

    What adds up the gradient of a parameter has no number of its own. It runs right after the node
    that made the gradient, before all that waits, and counts as that node's.

    Args:
        ops: rows.
        names: what their names' codes stand for.
    """
    found = np.full(len(ops), NONE, dtype=np.int64)
    backward = np.flatnonzero((ops.sequence != NONE) & (ops.forward_thread > 0))
    made = np.flatnonzero((ops.sequence != NONE) & (ops.forward_thread == 0))
    if not len(backward) or not len(made):
        return found
    stems = _stems(names)
    for thread in distinct(ops.forward_thread[backward]).tolist():
        rows = backward[ops.forward_thread[backward] == thread]
        best, agreeing = None, 0
        for track in distinct(ops.track[made]).tolist():
            makers = _makers(ops, made[ops.track[made] == track], rows)
            known = makers != NONE
            same = int((stems[ops.name[makers[known]]] == stems[ops.name[rows[known]]]).sum())
            if same > agreeing:
                best, agreeing = makers, same
        if best is not None:
            found[rows] = best
    _add_unnumbered(ops, names, backward, found)
    return found


def _add_unnumbered(ops: Numbered, names: list[str], numbered: Ints, found: Ints) -> None:
    """Makers for what the engine runs without a number: of the node inside, or just before."""
    engine = engine_runs(ops, names) & (ops.sequence == NONE)
    after = _named(ops, names, accumulates)
    for track in distinct(ops.track[numbered]).tolist():
        nodes = numbered[ops.track[numbered] == track]
        rows = np.flatnonzero(engine & (ops.track == track))
        following = np.searchsorted(ops.start[nodes], ops.start[rows], side="left")
        at = np.where(after[rows], following - 1, following)
        node = nodes[np.clip(at, 0, len(nodes) - 1)]
        belongs = np.where(after[rows], at >= 0, ops.start[node] < ops.end[rows])
        found[rows] = np.where(belongs & (at < len(nodes)), found[node], NONE)


def _named(ops: Numbered, names: list[str], wanted: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
    return rows_with(ops.name, codes_of(names, wanted), len(names))


def _stems(names: list[str]) -> Ints:
    codes: dict[str, int] = {}
    return ints([codes.setdefault(stem(name), len(codes)) for name in names])


def _makers(ops: Numbered, made: Ints, rows: Ints) -> Ints:
    """Which of `made`, operators of one thread, made the nodes of `rows`; NONE where unknown.

    An operator carries the number that the next node will get. It may make none, or several (an
    operator in place on a view), so the maker of node n is the last one to begin with n or less.
    """
    order = made[np.lexsort((ops.start[made], ops.sequence[made]))]
    at = np.searchsorted(ops.sequence[order], ops.sequence[rows], side="right") - 1
    maker = order[np.maximum(at, 0)]
    return ints(np.where((at >= 0) & (ops.start[maker] < ops.start[rows]), maker, NONE))
