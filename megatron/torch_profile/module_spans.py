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

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.profiler import record_function

try:
    from torch.compiler import is_compiling
except ImportError:  # before torch 2.2
    from torch._dynamo.external_utils import is_compiling

from megatron.torch_profile.backward_spans import BackwardSpans
from megatron.torch_profile.guard import Guard

# What Megatron wraps a model chunk in; the paths users know begin below them.
_WRAPPER_ATTRIBUTE = "module"
# The model itself, which computes the loss outside of its parts.
_ROOT = "model"
# Megatron's and torch's placeholders for a part that a layer does not have: a tenth of all spans.
_NOTHING = ("IdentityOp", "IdentityFuncOp", "Identity")
# Where Megatron puts what a pipeline stage received: no argument of the forward that uses it.
_RECEIVED = "input_tensor"
# Megatron captures such a module into CUDA graphs, by a manager, or as Transformer Engine's in a
# list, and asserts that nobody else's hooks are on it or on what is in it.
_GRAPH_MANAGER, _GRAPH_LIST = "CudaGraphManager", "cuda_graphs"
# torch.compile's mark on a function, and on a module that it was called on.
_COMPILED, _COMPILED_IN_PLACE = "_torchdynamo_orig_callable", "_compiled_call_impl"


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
        self._guard = Guard("spans of modules")
        self._backward = BackwardSpans(self._guard)
        # A stack, because modules are inside each other, and one may be entered while it is open
        # (shared or recomputed).
        self._forward: list[tuple[str, Any]] = []
        self._removed = False
        chunks = chunks if isinstance(chunks, (list, tuple)) else [chunks]
        for index, chunk in enumerate(chunks):
            prefix = f"chunk{index}." if len(chunks) > 1 else ""
            for path, module in _hookable(_unwrapped(chunk)):
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
        self._removed = True
        while self._forward:
            self._forward.pop()[1].__exit__(None, None, None)
        self.close_backward()

    def close_backward(self) -> None:
        """Close backward spans that a pass which failed left open."""
        self._backward.close()

    def _hook(self, module: Any, name: str, is_model: bool) -> None:
        def enter(*_: Any) -> None:
            if self._removed:  # fused implementations keep the hooks that they once found
                return
            # A graph task runs in this thread: it is the backward pass that asks for the forward.
            again = torch._C._current_graph_task_id() != -1
            span = record_function(f"{name} (recompute)" if again else name)
            span.__enter__()
            self._forward.append((name, span))

        def leave(_: Any, args: Any, kwargs: Any, output: Any) -> None:
            if self._removed:
                return
            if any(name == open_name for open_name, _ in self._forward):
                # What is still open inside was entered and never left: fused implementations call
                # the hooks of their parts before, and none after.
                left = None
                while left != name:
                    left, span = self._forward.pop()
                    span.__exit__(None, None, None)
            if torch.is_grad_enabled():
                inputs = (args, kwargs, getattr(module, _RECEIVED, None))
                until = None if is_model else module.parameters
                self._backward.watch(f"{name} (backward)", inputs, output, until)

        self._handles += [
            module.register_forward_pre_hook(self._quiet(enter), prepend=True),
            module.register_forward_hook(self._quiet(leave), with_kwargs=True, always_call=True),
        ]

    def _quiet(self, hook: Callable[..., None]) -> Callable[..., None]:
        """The hook, which raises nothing and of which a compiled graph holds nothing."""
        guarded = self._guard.around(hook)

        def called(*args: Any) -> None:
            if not is_compiling():
                guarded(*args)

        return called


@contextmanager
def module_spans(chunks: Any, depth: int | None = None) -> Iterator[ModuleSpans]:
    """While open, modules have spans; afterwards they have no hook left. See `ModuleSpans`."""
    spans = ModuleSpans(chunks, depth)
    try:
        yield spans
    finally:
        spans.remove()


def _hookable(module: Any) -> Iterator[tuple[str, Any]]:
    """As `named_modules`, without what is inside CUDA graphs or compiled."""
    closed: set[int] = set()
    for path, part in module.named_modules():
        if id(part) not in closed and not (_is_graphed(part) or _is_compiled(part)):
            yield path, part
        else:
            closed.update(map(id, part.children()))


def _is_graphed(module: Any) -> bool:
    return hasattr(module, _GRAPH_LIST) or any(
        type(part).__name__ == _GRAPH_MANAGER
        for part in (*module.children(), *vars(module).values())
    )


def _is_compiled(module: Any) -> bool:
    # What is compiled while hooks are on it would keep them, and its graph would be another.
    forward = vars(module).get("forward")
    return hasattr(forward, _COMPILED) or getattr(module, _COMPILED_IN_PLACE, None) is not None


def _unwrapped(chunk: Any) -> Any:
    while hasattr(chunk, _WRAPPER_ATTRIBUTE):
        chunk = getattr(chunk, _WRAPPER_ATTRIBUTE)
    return chunk
