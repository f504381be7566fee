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


_COPY_WORDS = ("memcpy", "memset")


@lru_cache(maxsize=4096)
def is_kernel_launch(name: str) -> bool:
    """Whether a runtime or driver call by this name puts kernels, or a graph of them, on a GPU.

    Kernels always leave a row; a copy or memset of nothing leaves none, so that only these calls
    tell whether activity was dropped. Everything else goes by correlation.
    """
    folded = name.lower()
    if folded.endswith("hostfunc") or any(word in folded for word in _COPY_WORDS):
        return False
    return "launch" in folded


@lru_cache(maxsize=4096)
def launches_work(name: str) -> bool:
    """Whether a call by this name puts kernels, a graph, a copy or a memset on a GPU."""
    return is_kernel_launch(name) or any(word in name.lower() for word in _COPY_WORDS)


@lru_cache(maxsize=4096)
def launches_graph(name: str) -> bool:
    """Whether a call by this name runs a graph that was captured before."""
    return "graphlaunch" in name.lower()


@lru_cache(maxsize=4096)
def begins_capture(name: str) -> bool:
    """Whether a call by this name begins the capture of a graph: launches run nothing from here."""
    return "begincapture" in name.lower()


@lru_cache(maxsize=4096)
def ends_capture(name: str) -> bool:
    """Whether a call by this name ends the capture of a graph."""
    return "endcapture" in name.lower()


@lru_cache(maxsize=4096)
def awaits_device(name: str) -> bool:
    """Whether a call by this name returns only when all work launched before it has ended."""
    return name.lower().endswith(("devicesynchronize", "ctxsynchronize"))


_WAITS = ("devicesynchronize", "ctxsynchronize", "streamsynchronize", "eventsynchronize")


@lru_cache(maxsize=4096)
def awaits_work(name: str) -> bool:
    """Whether a call by this name returns only when work of the GPU, some or all, has ended."""
    return name.lower().endswith(_WAITS)


@lru_cache(maxsize=4096)
def awaits_stream(name: str) -> bool:
    """Whether a call by this name returns only when the work of one stream has ended."""
    return name.lower().endswith("streamsynchronize")


@lru_cache(maxsize=4096)
def makes_stream_wait(name: str) -> bool:
    """Whether after a call by this name a stream waits for an event of another one."""
    return name.lower().endswith("streamwaitevent")
