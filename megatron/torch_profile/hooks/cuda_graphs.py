# SPDX-License-Identifier: Apache-2.0
"""Whether this process replays CUDA graphs: beside a replay no other thread may stop the profiler.

Seen on an H200 with torch 2.11 and CUDA 13: the iteration after such a window ended training with
cudaErrorLaunchFailure. Every capture of torch's passes through one method (`torch.cuda.graph`,
`make_graphed_callables`, `torch.compile(mode="reduce-overhead")`, Megatron, Transformer Engine),
which is wrapped from `install()` on and costs nothing but at a capture. Megatron's flags tell of
its graphs before they are captured; graphs that were captured before `install()` are objects of
this process, and looked for once.

Not noticed: a graph that other libraries capture without torch (cupy, CUDA's own functions), and
one that was captured before `install()` and hidden by `gc.freeze()`.
"""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any

from megatron.torch_profile.patching import Patch, PatchSet

_MODULE = "torch.cuda.graphs"
_used = False
_no_stop = threading.Event()
_no_stop.set()


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


def _capture_begin(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    expect()  # first: a stop that has not begun yet is training's then
    _no_stop.wait()
    return wrapped(*args, **kwargs)


captures = PatchSet((Patch(_MODULE, "CUDAGraph.capture_begin", _capture_begin, since=(0, 6)),))
"""Applied from `install()` on, and while training is followed."""
