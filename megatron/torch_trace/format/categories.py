# SPDX-License-Identifier: Apache-2.0
"""The words of the trace format: categories by all the names they have had, and what they mean."""

from __future__ import annotations

from functools import lru_cache

_OLD_NAMES = {
    # Kineto before 2022 and torch.autograd's own exporter.
    "operator": "cpu_op",
    "kernel": "kernel",
    "memcpy": "gpu_memcpy",
    "memset": "gpu_memset",
    "runtime": "cuda_runtime",
    "python": "python_function",
    "async_cpu_to_gpu": "ac2g",
    "async": "ac2g",
    "forward_backward": "fwdbwd",
}

GPU_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
"""What keeps a GPU busy. Annotations on the GPU's tracks do not."""

LAUNCHES = frozenset(
    {
        "cuda_runtime",
        "cuda_driver",
        "hip_runtime",
        "privateuse1_runtime",
        "privateuse1_driver",
        "xpu_runtime",
        "xpu_driver",
        "mtia_runtime",
    }
)
"""Calls on the CPU that may put work on a GPU; `correlation` says which."""

ANNOTATIONS = frozenset({"user_annotation", "gpu_user_annotation"})

FLOWS = frozenset({"ac2g", "fwdbwd"})

_OTHERS = frozenset(
    {
        "cpu_op", "cpu_instant_event", "python_function", "overhead", "metadata",
        "collective_comm", "Trace",
    }
)  # fmt: skip
"""Names of Kineto's ActivityType that need no more than to be known."""

FLOW_PHASES = frozenset({"s", "t", "f"})

_canonical: dict[str, str] = {}


def category(written: str) -> str:
    """The present name of a category: `Kernel` and `kernel` are both `kernel`.

    An event without category, such as metadata, has the category "".
    """
    try:
        return _canonical[written]
    except KeyError:
        folded = written.lower()
        name = _OLD_NAMES.get(folded, folded if folded != "trace" else "Trace")
        if len(_canonical) < 10_000:
            _canonical[written] = name
        return name


def is_known(name: str) -> bool:
    """Whether a profiler writes a category of this present name."""
    return name in GPU_WORK | LAUNCHES | ANNOTATIONS | FLOWS | _OTHERS


_LAUNCH_WORDS = ("launch", "memcpy", "memset", "graphlaunch")


@lru_cache(maxsize=4096)
def is_launch(name: str) -> bool:
    """Whether a runtime or driver call by this name puts work on a GPU.

    Used to count launches without a kernel; everything else goes by correlation.
    """
    folded = name.lower()
    return any(word in folded for word in _LAUNCH_WORDS) and not folded.endswith("hostfunc")
