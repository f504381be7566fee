# SPDX-License-Identifier: Apache-2.0
"""CUPTI, through which the GPU's events come: how it is left, and who else holds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# With CUDA graphs, CUPTI can be torn down and attached again from this CUDA on; before, the
# process crashes (pytorch/pytorch#75504, #112507, #134308).
_GRAPHS_SURVIVE_TEARDOWN = (12, 6)

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
    if cuda is None or "TEARDOWN_CUPTI" in given:
        return {}
    version = tuple(int(part) for part in cuda.split(".")[:2])
    if cuda_graphs and version < _GRAPHS_SURVIVE_TEARDOWN:
        wanted = {"TEARDOWN_CUPTI": "0", "DISABLE_CUPTI_LAZY_REINIT": "1"}
    else:
        wanted = {"TEARDOWN_CUPTI": "1"}
    return {name: value for name, value in wanted.items() if name not in given}


def uses_cuda_graphs(args: Any) -> bool:
    """Whether Megatron's arguments ask for CUDA graphs, in any version's spelling."""
    return bool(
        getattr(args, "enable_cuda_graph", False)
        or getattr(args, "external_cuda_graph", False)
        or getattr(args, "cuda_graph_impl", "none") not in (None, "none")
    )


def other_subscriber(given: Mapping[str, str]) -> str | None:
    """Who else has hooked into CUDA in this process, by what it leaves in the environment."""
    return next(
        (f"{who} ({name} is set)" for name, who in _OTHERS.items() if given.get(name)), None
    )
