# SPDX-License-Identifier: Apache-2.0
"""Whether this process replays CUDA graphs: beside a replay no other thread may stop the profiler.

Seen on an H200 with torch 2.11 and CUDA 13: the iteration after such a window ended training with
cudaErrorLaunchFailure. Megatron's flags tell of its own graphs; those of torch.compile and of the
user's code are noticed when they are captured.
"""

from __future__ import annotations

from typing import Any

from megatron.torch_profile.patching import Patch, PatchSet

_used = False


def expect() -> None:
    """Megatron's flags ask for them."""
    global _used
    _used = True


def in_use() -> bool:
    """Whether any graph has been captured, or will be."""
    return _used


def _capture_begin(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    expect()
    return wrapped(*args, **kwargs)


captures = PatchSet(
    (Patch("torch.cuda.graphs", "CUDAGraph.capture_begin", _capture_begin, since=(0, 6)),)
)
"""Applied while training is followed. What was captured before it began is seen by its flags."""
