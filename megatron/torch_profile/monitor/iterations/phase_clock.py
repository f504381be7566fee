# SPDX-License-Identifier: Apache-2.0
"""When the parts of an iteration begin and end on this rank: noted by training, read beside it.

Parts lie inside each other: a wait inside a forward is taken from the forward, and what is in no
part is `other`. Training appends to a list; a thread reads iterations whose marks are done.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any

from megatron.torch_profile.monitor.iterations.host_side import HostSide, Moment, host_side
from megatron.torch_profile.monitor.iterations.marks import Marks
from megatron.torch_profile.monitor.iterations.measured import Measured
from megatron.torch_profile.monitor.iterations.parts import OTHER, PARTS, PAUSE, WAITING

_MOST_PARTS = 8192
"""Of an iteration; the rest of one with more is not measured."""
_BREATH_SECONDS = 0.0002
"""Between two iterations that are read, so that training need not wait long for Python's lock."""
_MOST_UNREAD = 64
"""Iterations; a thread that does not come to read costs measurements and no memory."""


@dataclass(slots=True)
class _Part:
    kind: str
    parent: int
    begin: Any
    end: Any = None


@dataclass(slots=True)
class _Iteration:
    number: int
    disturbed: bool = False
    in_parts: bool = True
    parts: list[_Part] = field(default_factory=list)
    moments: list[tuple[Any, int]] = field(default_factory=list)
    """Marks in their order, and in which part training was until then."""


class PhaseClock:
    """Of one rank, for one call of `train`.

    Args:
        marks: what moments are marked with.
        watch_parts: called with True before the first of some iterations that are measured in their
            parts, and with False after the last one; `begin` and `end` need not be called between.
    """

    def __init__(self, marks: Marks, watch_parts: Callable[[bool], None] | None = None) -> None:
        self._marks = marks
        self.watch_parts = watch_parts
        self._watches = False
        self._now: _Iteration | None = None
        self._stack: list[int] = []
        self._over: deque[tuple[_Iteration, Any]] = deque()
        self._reader: int | None = None
        self.thread = get_ident()

    def begin_step(self, iteration: int, *, disturbed: bool = False, in_parts: bool = True) -> None:
        """An iteration begins, and so ends the one before.

        Args:
            iteration: global.
            disturbed: something that is no part of training is in it.
            in_parts: measure its parts too; else all of it is `other`.
        """
        if in_parts is not self._watches and self.watch_parts is not None:
            self._watches = in_parts
            self.watch_parts(in_parts)
        mark = self._marks.mark()
        ended, self._now = self._now, None
        if ended is not None and mark is not None and len(self._over) < _MOST_UNREAD:
            ended.moments.append((mark, self._stack[-1]))
            self._over.append((ended, mark))
        if mark is not None:
            self._stack = [0]
            root = _Part(OTHER, -1, mark)
            self._now = _Iteration(iteration, disturbed, in_parts, [root], [(mark, 0)])

    def close(self) -> None:
        """Training has ended, and so has its last iteration, with whatever came after it."""
        if self._now is not None:
            self.disturb()
            self.begin_step(0)
            self._now = None

    def disturb(self) -> None:
        """Something that is no part of training is in this iteration."""
        if self._now is not None:
            self._now.disturbed = True

    def begin(self, kind: str) -> None:
        """A part begins."""
        now = self._now
        if now is None or not (now.in_parts or kind == PAUSE) or len(now.parts) >= _MOST_PARTS:
            return
        mark = self._marks.mark()
        if mark is not None:
            now.moments.append((mark, self._stack[-1]))
            self._stack.append(len(now.parts))
            now.parts.append(_Part(kind, self._stack[-2], mark))

    def end(self, kind: str) -> None:
        """It ends, and with it what is open inside."""
        now, stack = self._now, self._stack
        if now is None or len(stack) < 2:
            return
        parts = now.parts
        if parts[stack[-1]].kind != kind and all(parts[at].kind != kind for at in stack[1:]):
            return
        mark = self._marks.mark()
        if mark is None:
            return
        now.moments.append((mark, stack[-1]))
        while True:
            part = parts[stack.pop()]
            part.end = mark
            if part.kind == kind:
                return

    def read(self) -> list[Measured]:
        """Iterations that the GPU has done since the last call; called by one thread."""
        found = []
        while self._over:
            iteration, end = self._over[0]
            with self._marks.reading() as may:
                if not (may and self._is_done(end)):
                    break
                self._over.popleft()
                found.append(self._measured(iteration, end))
            # The last mark is the first one of the iteration that follows.
            used = {id(p.end): p.end for p in iteration.parts if p.end is not None}
            used |= {id(p.begin): p.begin for p in iteration.parts}
            self._marks.give_back(used.values())
            time.sleep(_BREATH_SECONDS)
        return found

    def _is_done(self, end: Any) -> bool:
        if self._reader != get_ident():
            self._reader = get_ident()
            self._marks.adopt()
        return self._marks.done(end)

    def _measured(self, iteration: _Iteration, end: Any) -> Measured:
        """What is still open at the end of its iteration ends with it."""
        parts = iteration.parts
        # The last mark belongs to the iteration that follows, too: parts do not get it for good.
        edges = [(part.begin, end if part.end is None else part.end) for part in parts]
        marks = {id(mark): mark for edge in edges for mark in edge}
        between, begin = self._marks.between, parts[0].begin
        moments = {key: between(begin, mark) for key, mark in marks.items()}
        whole = [moments[id(last)] - moments[id(first)] for first, last in edges]
        own = list(whole)
        for index, part in enumerate(parts[1:], start=1):
            own[part.parent] -= whole[index]
            if parts[part.parent].kind == PAUSE:  # evaluation has forwards too
                part.kind = PAUSE
        sums = dict.fromkeys((*PARTS, WAITING, PAUSE), 0.0)
        for part, ms in zip(parts, own, strict=True):
            sums[part.kind] += ms
        total = whole[0] - sums.pop(PAUSE)
        host = self._host_side(iteration, moments) if iteration.in_parts else None
        return Measured(
            iteration.number,
            iteration.disturbed,
            total,
            **sums,
            in_parts=iteration.in_parts,
            host=host,
        )

    def _host_side(self, iteration: _Iteration, gpu: dict[int, float]) -> HostSide | None:
        """What the thread did, where the marks are those of a GPU."""
        found = []
        for mark, at in iteration.moments:
            host = self._marks.made_ms(mark)
            if host is None:
                return None
            part = iteration.parts[at]
            while part.kind == WAITING:  # a process group of Python's waits for one of C++
                part = iteration.parts[part.parent]
            found.append(Moment(None if part.kind == PAUSE else part.kind, host, gpu[id(mark)]))
        return host_side(found)
