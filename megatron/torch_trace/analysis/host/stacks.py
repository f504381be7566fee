# SPDX-License-Identifier: Apache-2.0
"""Time by stack of Python functions, for flame graphs: torch's `export_stacks()`.

    train.py(88):_main;model.py(12):_forward 1520

The time of every slice of its own (without those inside of it) goes to the Python functions around
it; that of the backward pass to those around the operator that made the node. torch writes a line
for each slice; here equal stacks are one line, with the sum.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from megatron.torch_trace.analysis.host.call_tree import CallTree
from megatron.torch_trace.analysis.timeline.autograd import stem
from megatron.torch_trace.columns.call_tables import OPERATOR, PYTHON
from megatron.torch_trace.columns.intervals import Ints
from megatron.torch_trace.columns.joined_columns import NONE

_ENGINE = "autograd::engine::evaluate_function: "
_LEFT_OUT = (
    ("autograd/__init__", "_make_grads"),
    ("autograd/__init__", "backward"),
    ("torch/tensor", "backward"),
)
"""Functions that torch leaves out of its stacks: both words are in their names."""
_WITHOUT_SEPARATORS = str.maketrans(" ;\t\n", "____")


def stacks(tree: CallTree, *, gpu: bool) -> dict[str, int]:
    """Stack, the outermost function first -> nanoseconds.

    Args:
        tree: the slices of a trace with Python functions.
        gpu: time of the GPU work that was launched, instead of time on the CPU.
    """
    paths = _Paths(tree)
    inside = tree.inside()
    own = tree.gpu_time() if gpu else tree.own(tree.duration, inside)
    path = paths.around.copy()
    node = _nodes(tree)
    backward = np.flatnonzero(node != NONE)
    made = _makers(tree, node)
    path[backward] = np.where(made[backward] == NONE, 0, paths.around[made[backward]])
    time = np.zeros(len(paths), dtype=np.int64)
    # A slice that begins in a call and ends after it makes what is around both shorter than they.
    np.add.at(time, path[~tree.repeats], np.maximum(own[~tree.repeats], 0))
    return {text: int(time[number]) for number, text in paths.texts() if time[number] > 0}


def lines(found: dict[str, int]) -> Iterator[str]:
    """As flamegraph.pl and speedscope read it, in whole microseconds; shorter ones are left out."""
    for stack, time in found.items():
        if time >= 1000:
            yield f"{stack} {time // 1000}"


class _Paths:
    """The stacks of a trace, each held once: a function, and the stack that it was called from.

    Number 0 is the empty stack.

    Attributes:
        around: of each slice, the number of the stack around it.
    """

    def __init__(self, tree: CallTree) -> None:
        self._words = [_word(name) for name in tree.names]
        self._called: list[tuple[int, int]] = [(0, NONE)]
        known: dict[tuple[int, int], int] = {}
        parents, names = tree.parent.tolist(), tree.cpu["name"].tolist()
        python = (tree.cpu["kind"] == PYTHON).tolist()
        around = [0] * len(parents)
        through = [0] * len(parents)
        for row, parent in enumerate(parents):  # those around come first
            outer = through[parent] if parent != NONE else 0
            around[row] = through[row] = outer
            if python[row] and self._words[names[row]] is not None:
                key = (outer, names[row])
                if key not in known:
                    known[key] = len(self._called)
                    self._called.append(key)
                through[row] = known[key]
        self.around = np.array(around, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._called)

    def texts(self) -> Iterator[tuple[int, str]]:
        """The number and the text of each stack that is not empty."""
        texts = [""]
        for number, (outer, name) in enumerate(self._called[1:], start=1):
            word = self._words[name] or ""
            texts.append(f"{texts[outer]};{word}" if outer else word)
            yield number, texts[number]


def _word(name: str) -> str | None:
    if any(all(word in name for word in words) for words in _LEFT_OUT):
        return None
    return name.translate(_WITHOUT_SEPARATORS)


def _nodes(tree: CallTree) -> Ints:
    """Of each slice, the row of the node of the backward pass that it is or is in, else NONE."""
    names, kind = tree.cpu["name"], tree.cpu["kind"]
    engine = np.array([name.startswith(_ENGINE) for name in tree.names], dtype=bool)[names]
    numbered = (tree.cpu["sequence"] != NONE) & (tree.cpu["forward_thread"] > 0)
    under_engine = (tree.parent != NONE) & engine[tree.parent]
    is_node = (kind == OPERATOR) & ~engine & (numbered | (under_engine & _is_run_by(tree)))
    found = np.where(is_node, np.arange(len(kind)), NONE)
    around = tree.parent.copy()
    while (rows := np.flatnonzero((found == NONE) & (around != NONE))).size:
        found[rows] = np.where(is_node[around[rows]], around[rows], NONE)
        around[rows] = tree.parent[around[rows]]
    return found


def _is_run_by(tree: CallTree) -> Ints:
    """Which slices have the name of a node: the engine's own name ends with it."""
    codes = {name: code for code, name in enumerate(tree.names)}
    runs = np.array(
        [codes.get(name.removeprefix(_ENGINE), NONE) for name in tree.names], dtype=np.int64
    )
    found: Ints = tree.cpu["name"] == runs[tree.cpu["name"][tree.parent]]
    return found


def _makers(tree: CallTree, node: Ints) -> Ints:
    """Of each slice in a node, the first operator of the forward pass with the node's number."""
    found = np.full(len(node), NONE, dtype=np.int64)
    sequence, thread = tree.cpu["sequence"], tree.cpu["forward_thread"]
    nodes = np.unique(node[node != NONE])
    nodes = nodes[sequence[nodes] != NONE]
    forward = np.flatnonzero((node == NONE) & (sequence != NONE) & (thread <= 0))
    stems = _stems(tree)
    made_by = np.full(len(node), NONE, dtype=np.int64)
    for one in np.unique(thread[nodes]).tolist():
        mine = nodes[thread[nodes] == one]
        best = -1
        # torch's numbers of threads are not the trace's; names tell which is which.
        for track in np.unique(tree.cpu["track"][forward]).tolist():
            makers = _first(sequence, forward[tree.cpu["track"][forward] == track], mine)
            known = makers != NONE
            agreeing = int((stems[makers[known]] == stems[mine[known]]).sum())
            if agreeing > best:
                best, made_by[mine] = agreeing, makers
    inside = np.flatnonzero(node != NONE)
    found[inside] = made_by[node[inside]]
    return found


def _first(sequence: Ints, operators: Ints, nodes: Ints) -> Ints:
    numbers, first = np.unique(sequence[operators], return_index=True)
    at = np.minimum(np.searchsorted(numbers, sequence[nodes]), len(numbers) - 1)
    found = operators[first[at]]
    return np.where(numbers[at] == sequence[nodes], found, NONE)


def _stems(tree: CallTree) -> Ints:
    codes: dict[str, int] = {}
    by_name = np.array(
        [codes.setdefault(stem(name), len(codes)) for name in tree.names], dtype=np.int64
    )
    stems: Ints = by_name[tree.cpu["name"]]
    return stems
