# SPDX-License-Identifier: Apache-2.0
"""Spans around the collections of Python's garbage collector, on the thread that it stops, and how
long all of them took.

    garbage collection (generation 2)

A collection of all objects takes a good part of a second in a large program, launches nothing, and
comes on each rank in another iteration, so that all ranks wait for one after the other.

From Python 3.12 on a collection begins between two instructions, or in PyErr_CheckSignals, and no
longer in any allocation of an object (What's new in Python 3.12, gh-97922; `_Py_HandlePending` in
CPython's Python/ceval_gil.c): no code in C is half-way through its work, torch's profiler neither,
so a range may begin there. Of an older Python there are no spans. The range lies inside of
whatever span its thread is in, and ends before anything in that goes on.
"""

from __future__ import annotations

import gc
import os
import sys
import sysconfig
from contextlib import suppress
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from torch.autograd import _profiler_enabled

from megatron.torch_profile.guard import Guard
from megatron.torch_profile.log import Slug
from megatron.torch_profile.signal_handlers import PassedOn
from megatron.torch_profile.spans.ranges import begin, end
from megatron.torch_trace.analysis.timeline.span_names import collection_name

_CAN_RECORD = sys.version_info >= (3, 12)
# A collection of generation 0 looks at the 700 (3.12) or 2,000 youngest objects and no others. That
# takes 12 to 28 us, and comes ten times as often as the next generation's: spans, at 5 us each,
# would cost more than they tell. 3.14 has no such ones: what begins by itself there is an
# increment, as generation 1. A Python without the GIL looks at all objects, and calls all of them
# generation 0.
_LEAST = 0 if sysconfig.get_config_var("Py_GIL_DISABLED") else 1


class GarbageCollections:
    """The collections of one window on this rank.

    Args:
        everywhere: the profiler records every thread; else the one that trains and autograd's.
    """

    def __init__(self, *, everywhere: bool) -> None:
        self._everywhere = everywhere
        self._guard = Guard(
            Slug.SPANS_FAILED, "training goes on without spans of garbage collections"
        )
        self._pid = os.getpid()
        self._open: dict[int, list[tuple[Any, int]]] = {}
        self._times = self._time_ns = self._longest_ns = self._unrecorded = 0
        self._since = 0  # when a collection without a span began
        self._begun = self._closed = False
        self._callback = self._collects  # one object, by which it is found again
        self._passed_on = PassedOn(self._callback, self._cut_short)

    def start(self) -> None:
        """The profiler has begun to record."""
        self._begun = True
        self._passed_on.open()
        gc.callbacks.append(self._callback)

    def close(self) -> None:
        """The window closes: no callback is left, and nothing is open in this thread.

        A signal may close it in the middle of a collection, which goes on without its span. One of
        another thread ends its span there, and takes the callback away: who destroyed that span in
        the next window would have torch write into memory of this one.
        """
        if not self._begun:
            return
        if not self._closed:
            self._closed = True
            while self._open.get(get_ident()) and not self._guard.failed:
                self._guard(self._end)
            self._open.pop(get_ident(), None)
            if not self._passed_on.is_under_way():
                self._passed_on.close()
        if not self._open or self._guard.failed:
            with suppress(ValueError):  # somebody has emptied the list
                gc.callbacks.remove(self._callback)

    @property
    def told(self) -> dict[str, int] | None:
        """Collections of all generations and threads, for the metadata of the trace.

        Returns:
            `collections`, their `time_ns` and `longest_ns`; where they have spans also how many of
            them are `unrecorded`, because the profiler does not record their threads. None where
            that is unknown.
        """
        if not self._begun or self._guard.failed:
            return None
        return {
            "collections": self._times,
            "time_ns": self._time_ns,
            "longest_ns": self._longest_ns,
            **({"unrecorded": self._unrecorded} if _CAN_RECORD else {}),
        }

    def _collects(self, phase: str, info: dict[str, int]) -> None:
        if self._closed:
            self._passed_on.close()
            if phase == "stop" and get_ident() in self._open and os.getpid() == self._pid:
                self._guard(self._end)
                # Not from the middle of the list: Python would skip who comes next.
                if not self._open and gc.callbacks[-1:] == [self._callback]:
                    gc.callbacks.pop()
        elif info["generation"] < _LEAST or not _CAN_RECORD:  # there are many: no more than needed
            now = perf_counter_ns()
            if phase == "start":
                self._since = now
            elif self._since:
                self._count(now - self._since)
                self._since = 0
        elif os.getpid() == self._pid:  # a fork has no profiler
            if phase == "start":
                self._guard(self._begin, info["generation"])
            else:
                self._guard(self._end)

    def _cut_short(self) -> None:
        self._guard(self._end)
        if self._closed:
            self._passed_on.close()

    def _begin(self, generation: int) -> None:
        begun, since = None, perf_counter_ns()  # before the span, so that no span is longer
        if self._everywhere or _profiler_enabled():
            begun = begin(collection_name(generation))
        else:
            self._unrecorded += 1
        # One within another is possible in 3.12, where a finalizer lets other instructions run.
        self._open.setdefault(get_ident(), []).append((begun, since))

    def _end(self) -> None:
        here = get_ident()
        if here not in self._open:  # it began before the window
            return
        begun, since = self._open[here].pop()
        if begun is not None:
            end(begun)
        if self._open[here]:  # the time of one within another is that of the other
            self._times += 1
        else:
            del self._open[here]
            self._count(perf_counter_ns() - since)

    def _count(self, time_ns: int) -> None:
        self._times += 1
        self._time_ns += time_ns
        if time_ns > self._longest_ns:
            self._longest_ns = time_ns
