# SPDX-License-Identifier: Apache-2.0
"""Whether this process replays CUDA graphs: beside a replay no other thread may stop the profiler.

Seen on an H200 with torch 2.11 and CUDA 13: the iteration after such a window ended training with
cudaErrorLaunchFailure. Every capture of torch's passes through one method (`torch.cuda.graph`,
`make_graphed_callables`, `torch.compile(mode="reduce-overhead")`, Megatron, Transformer Engine),
which is wrapped from `install()` on and costs nothing but at a capture. Megatron's flags tell of
its graphs before they are captured; graphs that were captured before `install()` are objects of
this process, and looked for once.

While a graph is captured, no other thread may ask an event of CUDA's whether it is done: that ends
the capture, and training with it (pytorch/pytorch#104487).

Not noticed: a graph that other libraries capture without torch (cupy, CUDA's own functions), and
one that was captured before `install()` and hidden by `gc.freeze()`.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from megatron.torch_profile.patching import Patch, PatchSet

_MODULE = "torch.cuda.graphs"
_used = False
_no_stop = threading.Event()
_no_stop.set()
_under_way = 0
_begins = threading.RLock()


def expect() -> None:
    """There are graphs, or Megatron's flags ask for them."""
    global _used
    _used = True


def in_use() -> bool:
    """Whether any graph has been captured, or will be."""
    return _used


def stop_begins() -> None:
    """A thread is about to stop the profiler: whoever captures a graph waits for that."""
    _no_stop.clear()


def stop_ends() -> None:
    """No thread stops the profiler any more."""
    _no_stop.set()


def look() -> None:
    """Find graphs that were captured before captures were noticed."""
    kind = getattr(sys.modules.get(_MODULE), "CUDAGraph", None)
    # By their own class: the `__class__` of a proxy may do anything.
    if kind is not None and any(issubclass(type(each), kind) for each in gc.get_objects()):
        expect()


def is_captured() -> bool:
    """Whether a graph is being captured now."""
    return _under_way > 0


@contextmanager
def between_captures() -> Iterator[bool]:
    """Whether a thread beside training may ask CUDA: no capture begins meanwhile, so be quick."""
    with _begins:
        yield not is_captured()


def _capture_begin(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    expect()  # first: a stop that has not begun yet is training's then
    _no_stop.wait()
    _count(1)
    try:
        return wrapped(*args, **kwargs)
    except BaseException:
        _count(-1)
        raise


def _capture_end(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    try:
        return wrapped(*args, **kwargs)
    finally:
        _count(-1)


def _count(change: int) -> None:
    global _under_way
    with _begins:
        _under_way = max(0, _under_way + change)  # one may have begun before it could be noticed


captures = PatchSet(
    (
        Patch(_MODULE, "CUDAGraph.capture_begin", _capture_begin, since=(0, 6)),
        Patch(_MODULE, "CUDAGraph.capture_end", _capture_end, since=(0, 6)),
    )
)
"""Applied from `install()` on, and while training is followed."""
