# SPDX-License-Identifier: Apache-2.0
"""The read side: read, check, slim, merge and analyse torch.profiler traces. No torch needed.

from megatron import torch_trace

analysis = torch_trace.analyze("torch_profile/20261127-221810/iter-0000003")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from megatron.torch_trace.version import __version__

if TYPE_CHECKING:
    from megatron.torch_trace.analysis.compare.comparison import compare
    from megatron.torch_trace.analysis.run.analyse import analyze

__all__ = ["__version__", "analyze", "compare"]


def __getattr__(name: str) -> Any:
    # Every module of the package passes here first: nothing may be imported until it is asked for.
    if name == "analyze":
        from megatron.torch_trace.analysis.run.analyse import analyze

        return analyze
    if name == "compare":
        from megatron.torch_trace.analysis.compare.comparison import compare

        return compare
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
