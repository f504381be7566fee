# SPDX-License-Identifier: Apache-2.0
"""Names in the trace that Megatron does not put there: a span for each module's forward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.profiler import record_function

# What Megatron wraps a model chunk in; the paths users know begin below them.
_WRAPPER_ATTRIBUTE = "module"


@contextmanager
def module_spans(chunks: Any) -> Iterator[None]:
    """While open, every forward of a submodule is a span `decoder.layers.3.mlp: MLP`.

    Args:
        chunks: Megatron's list of model chunks; DDP and precision wrappers are looked through.
            With several chunks (interleaved pipeline) the path begins with `chunk<i>.`.
    """
    chunks = chunks if isinstance(chunks, (list, tuple)) else [chunks]
    handles: list[Any] = []
    try:
        for index, chunk in enumerate(chunks):
            prefix = f"chunk{index}." if len(chunks) > 1 else ""
            for path, module in _unwrapped(chunk).named_modules():
                if path:
                    handles += _hooks(module, f"{prefix}{path}: {type(module).__name__}")
        yield
    finally:
        for handle in handles:
            handle.remove()


def _unwrapped(chunk: Any) -> Any:
    while hasattr(chunk, _WRAPPER_ATTRIBUTE):
        chunk = getattr(chunk, _WRAPPER_ATTRIBUTE)
    return chunk


def _hooks(module: Any, name: str) -> list[Any]:
    # A stack, because recomputation and reuse can enter a module that is already open.
    open_spans: list[Any] = []

    def enter(*_: Any) -> None:
        span = record_function(name)
        span.__enter__()
        open_spans.append(span)

    def leave(*_: Any) -> None:
        if open_spans:
            open_spans.pop().__exit__(None, None, None)

    return [
        module.register_forward_pre_hook(enter, prepend=True),
        module.register_forward_hook(leave, always_call=True),
    ]
