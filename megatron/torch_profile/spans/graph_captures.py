# SPDX-License-Identifier: Apache-2.0
"""When Megatron is about to capture modules into CUDA graphs, which nobody's hooks may see.

Until then such modules run as any others do, so the first iterations can name what the graphs will
replay: their hooks come off right before the capture, and nothing goes on once it has been.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from megatron.torch_profile.patching import OLDEST_CORE, Patch, PatchSet

_MODULE = "megatron.core.transformer.cuda_graphs"
_RECORD, _HELPER = "_CudagraphGlobalRecord", "TECudaGraphHelper"
# Megatron captures such a module into CUDA graphs, by a manager, or as Transformer Engine's in a
# list that is there before the graphs are, and asserts that nobody else's hooks are on it or on
# what is in it. In core 0.8 to 0.11 every block of layers has a dictionary, empty without graphs.
_MANAGER, _LIST = "CudaGraphManager", "cuda_graphs"

_waiting: list[Callable[[], None]] = []


def is_graphed(module: Any) -> bool:
    """Whether Megatron captures this module, or has captured it."""
    graphs = getattr(module, _LIST, None)
    return (
        isinstance(graphs, list)
        or bool(graphs)
        or any(
            type(part).__name__ == _MANAGER for part in (*module.children(), *vars(module).values())
        )
    )


def is_to_come(module: Any) -> bool:
    """Whether a module that belongs into a graph still runs without one, and its capture is told.

    Args:
        module: with a manager of graphs, or a list of them that may be empty.
    """
    graphs = vars(sys.modules.get(_MODULE, object)).get
    listed = getattr(module, _LIST, None)
    if isinstance(listed, list):
        return not listed and graphs(_HELPER) is not None
    # Not as False: a version that does not say so may have captured.
    return not listed and getattr(graphs(_RECORD), "cudagraph_created", True) is False


def call_before_capture(function: Callable[[], None]) -> Callable[[], None]:
    """Have a function called once, right before anything is captured.

    Returns:
        What takes it back.
    """
    _waiting.append(function)
    _captures.apply()

    def forget() -> None:
        with suppress(ValueError):
            _waiting.remove(function)
        if not _waiting:
            _captures.remove()

    return forget


def _capture(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    while _waiting:
        _waiting.pop()()
    return wrapped(*args, **kwargs)


_captures = PatchSet(
    (
        Patch(_MODULE, f"{_RECORD}.create_cudagraphs", _capture, OLDEST_CORE),
        Patch(_MODULE, f"{_HELPER}.create_cudagraphs", _capture, OLDEST_CORE),
    )
)
