# SPDX-License-Identifier: Apache-2.0
"""The read side: read, check, slim, merge and analyse torch.profiler traces. No torch needed.

from megatron import torch_trace

analysis = torch_trace.analyze("torch_profile/20261127-221810/iter-0000003")
"""

from __future__ import annotations

from importlib import import_module

from megatron.torch_trace.version import __version__

TYPE_CHECKING = False  # typing's own takes time, in which Ctrl-C prints a traceback
if TYPE_CHECKING:
    from typing import Any

    from megatron.torch_trace.allocator.answer import memory
    from megatron.torch_trace.allocator.difference.difference import memory_difference
    from megatron.torch_trace.allocator.ranks.analysed import analyze
    from megatron.torch_trace.analysis.compare.comparison import compare
    from megatron.torch_trace.analysis.run.whatif import whatif
    from megatron.torch_trace.columns.slice_table import read_table
    from megatron.torch_trace.flight_recorder.answer import hang
    from megatron.torch_trace.perfetto.convert import convert
    from megatron.torch_trace.query.answer import sql
    from megatron.torch_trace.rewrite.merge.merge import merge
    from megatron.torch_trace.rewrite.merge.split import split
    from megatron.torch_trace.rewrite.slim.slim import slim

__all__ = [
    "__version__",
    "analyze",
    "compare",
    "convert",
    "hang",
    "memory",
    "memory_difference",
    "merge",
    "read_table",
    "slim",
    "split",
    "sql",
    "whatif",
]

_ROOMS = {
    "analyze": "allocator.ranks.analysed",
    "compare": "analysis.compare.comparison",
    "convert": "perfetto.convert",
    "hang": "flight_recorder.answer",
    "memory": "allocator.answer",
    "memory_difference": "allocator.difference.difference",
    "merge": "rewrite.merge.merge",
    "read_table": "columns.slice_table",
    "slim": "rewrite.slim.slim",
    "split": "rewrite.merge.split",
    "sql": "query.answer",
    "whatif": "analysis.run.whatif",
}


def __getattr__(name: str) -> Any:
    # Every module of the package passes here first: nothing may be imported until it is asked for.
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)
