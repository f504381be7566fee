# SPDX-License-Identifier: Apache-2.0
"""Paths of the training loop's thread as a tree for people: what only passes on is one with it.

_call_impl (100) -> forward (99) -> aten::mm (40), aten::add (50)
is the node `_call_impl › forward` (100) with two children
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from megatron.torch_trace.analysis.host.loop_paths import PYTHON, SPAN, LoopPath
from megatron.torch_trace.analysis.timeline.span_names import ANY

_MODULE = re.compile(r"[\w*]+(?:\.[\w*]+)*")
BETWEEN = " › "
PASSED_ON = 0.95
"""Part of a path's time from which the only path in it is one with it."""


@dataclass(frozen=True, slots=True)
class LoopNode:
    """Paths of which each is the only one in the one before; times are ns of the window.

    Args:
        paths: at least one.
        level: from 0 on; the thread itself has 0.
        children: the longest first.
    """

    paths: tuple[LoopPath, ...]
    level: int
    children: tuple[LoopNode, ...]

    @property
    def innermost(self) -> LoopPath:
        """Where the time is: its kind, its calls and its longest slice stand for all of them."""
        return self.paths[-1]

    @property
    def time_ns(self) -> int:
        return self.paths[0].time_ns

    @property
    def self_ns(self) -> int:
        return sum(path.self_ns for path in self.paths)

    @property
    def others_ns(self) -> int:
        return sum(path.others_ns for path in self.paths)

    @property
    def others(self) -> int:
        return sum(path.others for path in self.paths)

    @property
    def name(self) -> str:
        """The outermost and the innermost name, without folders."""
        ends = self.paths if len(self.paths) < 2 else (self.paths[0], self.paths[-1])
        return BETWEEN.join(short(path.name, path.kind) for path in ends)

    @property
    def names(self) -> str:
        """All names, without folders."""
        return BETWEEN.join(short(path.name, path.kind) for path in self.paths)


def short(name: str, kind: str) -> str:
    """A name without the folders of its file, or without what a module is part of."""
    if kind == PYTHON:
        return name.rsplit("/", 1)[-1]
    path, colon, rest = name.partition(": ")
    if kind != SPAN or not colon or not _MODULE.fullmatch(path):
        return name
    parts = path.split(".")
    return ".".join(parts[-2 if parts[-1] == ANY else -1 :]) + colon + rest


def loop_tree(paths: Sequence[LoopPath]) -> LoopNode | None:
    """The thread with all paths below it; None if there are none.

    Args:
        paths: as `Host.loop_paths`.
    """
    if not paths:
        return None
    below: list[list[LoopPath]] = [[] for _ in paths]
    for path in paths:
        if path.above is not None:
            below[path.above].append(path)
    return _node(paths[0], below, 0)


def _node(path: LoopPath, below: list[list[LoopPath]], level: int) -> LoopNode:
    passing = [path]
    while level and len(inside := below[passing[-1].number]) == 1:
        if inside[0].time_ns < PASSED_ON * path.time_ns:
            break
        passing.append(inside[0])
    children = tuple(_node(one, below, level + 1) for one in below[passing[-1].number])
    return LoopNode(tuple(passing), level, children)
