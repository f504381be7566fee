# SPDX-License-Identifier: Apache-2.0
"""Profilers of torch's in this process that are not ours: ours gives way to them.

torch runs one profiler at a time. A second one that is prepared cancels the first without a word,
one that is started raises "Profiler is already enabled on this thread", and a result that was
cancelled ends the process when it is saved. So while training is followed, the three functions
through which every profiler of torch's goes (`torch.profiler`, `torch.autograd.profiler`,
`emit_nvtx`, `emit_itt`, the legacy one) tell of profilers that begin and end.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch

from megatron.torch_profile.hooks import cuda_graphs

_BEGINS = ("_prepare_profiler", "_enable_profiler", "_enable_profiler_legacy")
_ENDS = ("_disable_profiler", "_disable_profiler_legacy")
_MODULES = ("torch.autograd.profiler", "torch.autograd.profiler_legacy")
_TURN_SECONDS = 5.0
"""How long a profiler that another thread starts waits for the thread that trains to end ours: at
the end of its iteration, since torch's profiler is stopped where it was started."""

_here = threading.local()


@contextmanager
def ours() -> Iterator[None]:
    """What this thread does with torch's profiler meanwhile is our own doing."""
    before, _here.ours = getattr(_here, "ours", False), True
    try:
        yield
    finally:
        _here.ours = before


class OtherProfilers:
    """Knows whether another profiler runs, and has ours end before another begins.

    Args:
        give_way: ends our profiler, which calls `release`; called where another profiler begins
            in the thread that holds ours. Must not raise.
    """

    def __init__(self, give_way: Callable[[], None]) -> None:
        self._give_way = give_way
        self._undo = ExitStack()
        self._pid = os.getpid()
        self.seen = False
        """Whether one that began while training was followed has not ended."""
        self._free = threading.Event()
        self._free.set()
        self._holder = 0
        self.ending = False
        """Whether ours is being stopped beside training: whoever begins another waits for that."""
        self._closed = False
        self.asked = False
        """Whether another thread waits for the end of ours."""
        self.cancelled = False
        """Whether another profiler had to begin before ours was ended: ours has lost its trace."""
        self._prepared = _prepared_profilers()
        self._watch()
        cuda_graphs.look()
        if not cuda_graphs.captures.active:  # nobody has called `install()`
            cuda_graphs.captures.apply()
            self._undo.callback(cuda_graphs.captures.remove)

    @property
    def running(self) -> bool:
        """Whether another profiler warms up or records; asked while ours does not record."""
        self._prepared = [ref for ref in self._prepared if _is_open(ref())]
        enabled: bool = torch.autograd._profiler_enabled()
        return self.seen or enabled or bool(self._prepared)

    def hold(self) -> None:
        """Ours is about to be prepared, in this thread."""
        self._holder = threading.get_ident()
        self.cancelled = False
        self._free.clear()

    def release(self) -> None:
        """Ours has ended: who waits for it goes on. From any thread."""
        self._free.set()
        self.ending = False
        if self._closed:
            self._undo.close()

    def wait(self, seconds: float) -> bool:
        """Whether ours has ended within so many seconds."""
        return self._free.wait(seconds)

    def close(self) -> None:
        """Give torch its functions back, once ours has ended."""
        self._closed = True
        if not self.ending:
            self.release()

    def _watch(self) -> None:
        for module in filter(None, map(sys.modules.get, _MODULES)):
            for names, around in ((_BEGINS, self._begin), (_ENDS, self._end)):
                for name in names:
                    if original := getattr(module, name, None):
                        self._wrap(module, name, original, around)

    def _wrap(self, module: Any, name: str, original: Any, around: Callable[..., Any]) -> None:
        @wraps(original)
        def watched(*args: Any, **kwargs: Any) -> Any:
            # In a fork of training nobody ends ours, for which the fork would wait.
            if getattr(_here, "ours", False) or os.getpid() != self._pid:
                return original(*args, **kwargs)
            return around(original, args, kwargs)

        def put_back() -> None:
            # Somebody may have wrapped ours since: theirs stays, and ours passes everything on.
            if getattr(module, name) is watched:
                setattr(module, name, original)

        setattr(module, name, watched)
        self._undo.callback(put_back)

    def _begin(self, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self.seen = True  # first, so that ours does not begin meanwhile
        try:
            self._end_ours()
            return original(*args, **kwargs)
        except BaseException:
            self.seen = False
            raise

    def _end(self, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        finally:
            self.seen = False

    def _end_ours(self) -> None:
        if self._free.is_set():
            return
        if not self.ending:
            self._ask()
        if self.ending:
            # As long as it takes, as it would where training stops it.
            self._free.wait()
        self.cancelled = not self._free.is_set()

    def _ask(self) -> None:
        if threading.get_ident() == self._holder:
            self._give_way()
        else:
            self.asked = True
            self._free.wait(_TURN_SECONDS)
            self.asked = False


def _prepared_profilers() -> list[weakref.ref[Any]]:
    """Profilers that warm up already: nothing but the objects themselves tells."""
    kind = torch.autograd.profiler.profile
    return [weakref.ref(each) for each in gc.get_objects() if type(each) is kind and _is_open(each)]


def _is_open(profiler: Any) -> bool:
    return bool(
        profiler is not None
        and getattr(profiler, "entered", False)
        and getattr(profiler, "kineto_results", None) is None
    )
