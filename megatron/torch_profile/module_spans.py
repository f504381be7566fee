# SPDX-License-Identifier: Apache-2.0
"""Spans named by module: forward, backward and recomputation of every module of the model.

    decoder.layers.3.mlp: MLP                 forward
    decoder.layers.3.mlp: MLP (backward)      from the first gradient of its output that is used to
                                              the last gradient of its inputs that is complete; of
                                              its parameters, where its inputs have none; the
                                              model's own ends with the backward pass
    decoder.layers.3.mlp: MLP (recompute)     forward again, inside the backward pass

Backward spans come from hooks on tensors and autograd nodes, not from module backward hooks: those
put nodes of their own between modules, which Megatron's in-place freeing of outputs and its checks
for views do not stand. The hooks return nothing, so gradients are what they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.profiler import record_function

from megatron.torch_profile.backward_spans import BackwardSpans

# What Megatron wraps a model chunk in; the paths users know begin below them.
_WRAPPER_ATTRIBUTE = "module"
# The model itself, which computes the loss outside of its parts.
_ROOT = "model"
# Megatron's and torch's placeholders for a part that a layer does not have: a tenth of all spans.
_NOTHING = ("IdentityOp", "IdentityFuncOp", "Identity")
# Where Megatron puts what a pipeline stage received: no argument of the forward that uses it.
_RECEIVED = "input_tensor"


class ModuleSpans:
    """Spans of a model's modules, while its hooks are in place.

    Args:
        chunks: Megatron's list of model chunks; DDP and precision wrappers are looked through.
            With several chunks (interleaved pipeline) the path begins with `chunk<i>.`; the
            model itself is `model`.
        depth: deepest path that gets a span (`decoder.layers.3` has depth 3); None for all.
    """

    def __init__(self, chunks: Any, depth: int | None = None) -> None:
        self._handles: list[Any] = []
        self._backward = BackwardSpans()
        chunks = chunks if isinstance(chunks, (list, tuple)) else [chunks]
        for index, chunk in enumerate(chunks):
            prefix = f"chunk{index}." if len(chunks) > 1 else ""
            for path, module in _unwrapped(chunk).named_modules():
                if type(module).__name__ in _NOTHING:
                    continue
                if depth is None or path.count(".") < depth:
                    self._hook(
                        module, f"{prefix}{path or _ROOT}: {type(module).__name__}", not path
                    )

    def remove(self) -> None:
        """Take the hooks off, and close what a gradient that never came left open."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.close_backward()

    def close_backward(self) -> None:
        """Close backward spans that a pass which failed left open."""
        self._backward.close()

    def _hook(self, module: Any, name: str, is_model: bool) -> None:
        # A stack, because a module may be entered while it is open (shared or recomputed).
        forward: list[Any] = []

        def enter(*_: Any) -> None:
            # A graph task runs in this thread: it is the backward pass that asks for the forward.
            again = torch._C._current_graph_task_id() != -1
            span = record_function(f"{name} (recompute)" if again else name)
            span.__enter__()
            forward.append(span)

        def leave(_: Any, args: Any, kwargs: Any, output: Any) -> None:
            if forward:
                forward.pop().__exit__(None, None, None)
            if torch.is_grad_enabled():
                inputs = (args, kwargs, getattr(module, _RECEIVED, None))
                until = None if is_model else module.parameters
                self._backward.watch(f"{name} (backward)", inputs, output, until)

        self._handles += [
            module.register_forward_pre_hook(enter, prepend=True),
            module.register_forward_hook(leave, with_kwargs=True, always_call=True),
        ]


@contextmanager
def module_spans(chunks: Any, depth: int | None = None) -> Iterator[ModuleSpans]:
    """While open, modules have spans; afterwards they have no hook left. See `ModuleSpans`."""
    spans = ModuleSpans(chunks, depth)
    try:
        yield spans
    finally:
        spans.remove()


def _unwrapped(chunk: Any) -> Any:
    while hasattr(chunk, _WRAPPER_ATTRIBUTE):
        chunk = getattr(chunk, _WRAPPER_ATTRIBUTE)
    return chunk
