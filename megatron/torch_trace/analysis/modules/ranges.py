# SPDX-License-Identifier: Apache-2.0
"""When threads were inside modules: from the spans of capture, else from frames of Python stacks.

    decoder.layers.3.mlp: MLP (recompute)      span: path, class, pass
    nn.Module: MLP_3                           frame: class, and the how-many-eth of it in the trace

Frames have no paths. Theirs are made of classes, numbered among equal ones in the same module:
`GPTModel.TransformerBlock.TransformerLayer.0.MLP`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from megatron.torch_trace.analysis.timeline.activity import NONE, Rows
from megatron.torch_trace.analysis.timeline.autograd import runs_backward
from megatron.torch_trace.analysis.timeline.code_columns import rows_with
from megatron.torch_trace.analysis.timeline.nesting import Nesting
from megatron.torch_trace.analysis.timeline.span_names import (
    FORWARD,
    PASSES,
    RECOMPUTE,
    ROOT,
    module_span,
)
from megatron.torch_trace.analysis.timeline.timeline import Timeline, nesting_of
from megatron.torch_trace.columns.activity_tables import MODULE_FRAME
from megatron.torch_trace.columns.intervals import Ints, ints

SPANS, STACKS = "spans", "stacks"

_FRAME = re.compile(re.escape(MODULE_FRAME) + r"(?P<type>.*)_(?P<number>\d+)")
_CHUNK = re.compile(r"chunk\d+\.")
# What a model is wrapped in; the paths users know begin below them.
_WRAPPERS = frozenset(
    {
        "DistributedDataParallel",
        "Float16Module",
        "FullyShardedDataParallel",
        "MegatronFSDP",
        "TorchFullyShardedDataParallel",
    }
)


@dataclass
class ModuleRanges:
    """Ranges in modules, and the modules.

    Args:
        source: SPANS or STACKS.
        rows: columns of the ranges, as in `Activity`.
        module: for each range, position in `paths`.
        direction: for each range, position in `PASSES`.
        is_rest: for each range whether it is what a pass left for later, and no call.
        paths, types: of the modules.
    """

    source: str
    rows: Rows
    module: Ints
    direction: Ints
    is_rest: npt.NDArray[np.bool_]
    paths: list[str]
    types: list[str]

    @cached_property
    def nesting(self) -> Nesting:
        """Of the ranges; it answers with positions."""
        return Nesting(self.rows.start, self.rows.end, self.rows.track)

    @cached_property
    def above(self) -> list[tuple[int, ...]]:
        """For each module, those it is part of, the outermost first: the model, then by path."""
        position = {path: number for number, path in enumerate(self.paths)}
        return [
            tuple(position[one] for one in holders(path) if one in position) for path in self.paths
        ]

    def is_below(self, parts: Ints, modules: Ints) -> npt.NDArray[np.bool_]:
        """For each pair whether the first is part of the second, and another module.

        Positions in `paths`; what is not one, such as NONE, gives nothing of use.
        """
        first, last = self._descendants
        found: npt.NDArray[np.bool_] = first[parts] > first[modules]
        return found & (first[parts] <= last[modules])

    @cached_property
    def _descendants(self) -> tuple[Ints, Ints]:
        """Numbers in depth-first order of each module and of the last one below it."""
        below: list[list[int]] = [[] for _ in self.paths]
        for module, above in enumerate(self.above):
            if above:
                below[above[-1]].append(module)
        first = np.zeros(len(self.paths), dtype=np.int64)
        last = np.zeros(len(self.paths), dtype=np.int64)
        waiting = [module for module, above in enumerate(self.above) if not above]
        order: list[int] = []
        while waiting:
            module = waiting.pop()
            first[module] = last[module] = len(order)
            order.append(module)
            waiting += below[module]
        for module in reversed(order):
            for holder in self.above[module][-1:]:
                last[holder] = max(last[holder], last[module])
        return first, last


def find_ranges(timeline: Timeline) -> ModuleRanges | None:
    """The ranges of a trace; None if it has neither spans nor frames of modules.

    In a trace that is not of our capture frames go first: what looks like a span of a module there
    is an annotation of the user's that happens to be named like one.
    """
    if not timeline.activity.metadata.own:
        return _from_frames(timeline) or _from_spans(timeline)
    return _from_spans(timeline) or _from_frames(timeline)


def holders(path: str) -> list[str]:
    """Paths of what a module may be part of: each part of its own, and the model of its chunk."""
    parts = path.split(".")
    chunk = _CHUNK.match(path)
    root = f"{chunk[0] if chunk else ''}{ROOT}"
    prefixes = [".".join(parts[:count]) for count in range(1, len(parts))]
    return prefixes if path == root or root in prefixes else [root, *prefixes]


def _from_spans(timeline: Timeline) -> ModuleRanges | None:
    activity = timeline.activity
    names = activity.names
    spans = {code: span for code, name in enumerate(names) if (span := module_span(name))}
    ops = activity.ops
    rows = np.flatnonzero(rows_with(ops.name, spans, len(names)) & ops.annotation)
    if not len(rows):
        return None
    types = {span.path: span.type for span in spans.values()}
    position = {path: number for number, path in enumerate(types)}
    table = np.zeros((3, len(names)), dtype=np.int64)
    for code, span in spans.items():
        table[:, code] = position[span.path], PASSES.index(span.direction), span.is_rest
    module, direction, is_rest = table[:, ops.name[rows]]
    return ModuleRanges(
        SPANS, _chosen(ops, rows), module, direction, is_rest > 0, list(types), list(types.values())
    )


def _from_frames(timeline: Timeline) -> ModuleRanges | None:
    activity = timeline.activity
    names, frames = activity.names, activity.frames
    classes: dict[int, tuple[str, int]] = {}
    for code, name in enumerate(names):
        match = _FRAME.fullmatch(name)
        if match and match["type"] not in _WRAPPERS:
            classes[code] = match["type"], int(match["number"])
    rows = np.flatnonzero(rows_with(frames.name, classes, len(names)))
    if not len(rows):
        return None
    chosen = _chosen(frames, rows)
    module, holders, of = _tree(chosen)
    types = [classes[code][0] for code in of]
    nodes = nesting_of(activity.ops, runs_backward(activity))
    around = nodes.innermost(chosen.track, chosen.start)
    again, first = PASSES.index(RECOMPUTE), PASSES.index(FORWARD)
    direction = ints(np.where(around != NONE, again, first))
    order = [classes[code][1] for code in of]
    is_rest = np.zeros(len(module), dtype=np.bool_)
    paths = _paths(types, order, holders)
    return ModuleRanges(STACKS, chosen, module, direction, is_rest, paths, types)


def _chosen(table: Rows, rows: Ints) -> Rows:
    return Rows(table.start[rows], table.end[rows], table.name[rows], table.track[rows])


def _tree(frames: Rows) -> tuple[Ints, list[int], list[int]]:
    """Of each frame its module; of each module the one around it (NONE) and its name's code.

    A module called inside two others is one in each. Run again in the backward pass, when what is
    around it has long returned, it is where it was before.
    """
    known: dict[tuple[int, int], int] = {}
    inside: dict[int, int] = {}
    open_: dict[int, list[tuple[int, int]]] = {}
    module = np.zeros(len(frames), dtype=np.int64)
    columns = (frames.start, frames.end, frames.name, frames.track)
    for row, (start, end, name, track) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        stack = open_.setdefault(track, [])
        while stack and stack[-1][0] <= start:
            stack.pop()
        holder = stack[-1][1] if stack else NONE
        if holder == NONE and name in inside:
            module[row] = inside[name]
        else:
            module[row] = known.setdefault((holder, name), len(known))
        if holder != NONE:
            inside.setdefault(name, int(module[row]))
        stack.append((end, int(module[row])))
    return module, [holder for holder, _ in known], [name for _, name in known]


def _paths(types: list[str], order: list[int], holders: list[int]) -> list[str]:
    siblings: dict[tuple[int, str], list[int]] = {}
    for number, kind in enumerate(types):
        siblings.setdefault((holders[number], kind), []).append(number)
    paths = [""] * len(types)
    # A module comes after the one around it, so that one's path is there.
    for number, kind in enumerate(types):
        equal = sorted(siblings[holders[number], kind], key=lambda one: order[one])
        suffix = f".{equal.index(number)}" if len(equal) > 1 else ""
        above = f"{paths[holders[number]]}." if holders[number] != NONE else ""
        paths[number] = f"{above}{kind}{suffix}"
    return paths
