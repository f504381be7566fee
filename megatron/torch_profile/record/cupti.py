# SPDX-License-Identifier: Apache-2.0
"""CUPTI, through which the GPU's events come: how it is left, and who else holds it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping
from typing import Any

# With CUDA graphs, CUPTI can be torn down and attached again from this CUDA on; before, the
# process crashes (pytorch/pytorch#75504, #112507, #134308).
_GRAPHS_SURVIVE_TEARDOWN = (12, 6)
_TEARDOWN = "TEARDOWN_CUPTI"

_CLOSE = 10
"""Iterations. Kineto tears CUPTI down in a thread and at a later CUDA call; a window that has begun
by then records nothing of the GPU (pytorch/kineto#1554; seen with torch 2.11)."""

_managed = False
"""Whether this process's environment was ours to set."""

_cuda = False
"""Whether this process's torch is one for CUDA."""

_OTHERS = {
    "NSYS_PROFILING_SESSION_ID": "Nsight Systems (nsys)",
    "NVTX_INJECTION64_PATH": "an NVTX tool",
    "CUDA_INJECTION64_PATH": "a CUDA injection tool (nsys, compute-sanitizer)",
}


def environment(cuda: str | None, *, cuda_graphs: bool, given: Mapping[str, str]) -> dict[str, str]:
    """What Kineto's environment should be so that a window costs nothing after it has closed.

    CUPTI that stays attached slows every later launch by 10 to 20 percent (pytorch/pytorch#144455),
    so it is torn down after a window, except where that crashes.

    Args:
        cuda: torch.version.cuda, None without CUDA.
        cuda_graphs: whether the training uses CUDA graphs.
        given: the environment; what the user has set stays.

    Returns:
        Variables to set.
    """
    if cuda is None or _TEARDOWN in given:
        return {}
    version = tuple(int(part) for part in cuda.split(".")[:2])
    if cuda_graphs and version < _GRAPHS_SURVIVE_TEARDOWN:
        wanted = {_TEARDOWN: "0", "DISABLE_CUPTI_LAZY_REINIT": "1"}
    else:
        wanted = {_TEARDOWN: "1"}
    return {name: value for name, value in wanted.items() if name not in given}


def prepare(cuda: str | None, *, cuda_graphs: bool, given: MutableMapping[str, str]) -> None:
    """Set what `environment` wants."""
    global _managed, _cuda
    _cuda = cuda is not None
    wanted = environment(cuda, cuda_graphs=cuda_graphs, given=given)
    _managed = _managed or wanted.get(_TEARDOWN) == "1"
    given.update(wanted)


def before_stop(gap: int | None, given: MutableMapping[str, str]) -> None:
    """Let CUPTI be torn down after the window that is about to stop, if there is time for it.

    Kineto looks into the environment at every stop. What the user has set stays.

    Args:
        gap: iterations until the next window's warm-up begins; None if there is no other.
        given: the environment.
    """
    wanted = "1" if gap is None or gap >= _CLOSE else "0"
    if _managed and given.get(_TEARDOWN) != wanted:
        given[_TEARDOWN] = wanted


def stays_attached(activities: Collection[str], given: Mapping[str, str]) -> bool:
    """Whether CUPTI slows launches after a window, too; asked when the window has stopped.

    Args:
        activities: what was recorded.
        given: the environment.
    """
    return _cuda and "cuda" in activities and given.get(_TEARDOWN) != "1"


def uses_cuda_graphs(args: Any) -> bool:
    """Whether Megatron's arguments ask for CUDA graphs, in any version's spelling."""
    return bool(
        getattr(args, "enable_cuda_graph", False)
        or getattr(args, "external_cuda_graph", False)
        or getattr(args, "optimizer_cuda_graph", False)
        or getattr(args, "cuda_graph_impl", "none") not in (None, "none")
    )


def other_subscriber(given: Mapping[str, str]) -> str | None:
    """Who else has hooked into CUDA in this process, by what it leaves in the environment."""
    return next(
        (f"{who} ({name} is set)" for name, who in _OTHERS.items() if given.get(name)), None
    )
