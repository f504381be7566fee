# SPDX-License-Identifier: Apache-2.0
"""Spans named by module: forward, backward and recomputation of every module of the model.

    decoder.layers.3.mlp: MLP                 forward
    decoder.layers.3.mlp: MLP (backward)      from the first gradient of its output that is used to
                                              the last gradient of its inputs that is complete
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

# What Megatron wraps a model chunk in; the paths users know begin below them.
_WRAPPER_ATTRIBUTE = "module"
# The model itself, which computes the loss outside of its parts.
_ROOT = "model"
# Where Megatron puts what a pipeline stage received: no argument of the forward that uses it.
_RECEIVED = "input_tensor"
_BEGINS = "megatron.torch_profile.begins"


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
        self._backward_runs = False
        self._open: dict[int, Any] = {}
        chunks = chunks if isinstance(chunks, (list, tuple)) else [chunks]
        for index, chunk in enumerate(chunks):
            prefix = f"chunk{index}." if len(chunks) > 1 else ""
            for path, module in _unwrapped(chunk).named_modules():
                if depth is None or path.count(".") < depth:
                    self._hook(module, f"{prefix}{path or _ROOT}: {type(module).__name__}")

    def remove(self) -> None:
        """Take the hooks off, and close what a gradient that never came left open."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.close_backward()

    def close_backward(self) -> None:
        """Close backward spans that are still open: the input of a first module has no gradient."""
        for span in reversed(self._open.values()):
            span.__exit__(None, None, None)
        self._open.clear()

    def _hook(self, module: Any, name: str) -> None:
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
                self._watch_backward(f"{name} (backward)", inputs, output)

        self._handles += [
            module.register_forward_pre_hook(enter, prepend=True),
            module.register_forward_hook(leave, with_kwargs=True, always_call=True),
        ]

    def _watch_backward(self, name: str, inputs: Any, output: Any) -> None:
        # A tied weight is passed like an input, and its gradient is complete only at the very end.
        incoming = [
            t for t in _tensors(inputs) if t.requires_grad and not isinstance(t, torch.nn.Parameter)
        ]
        known = {id(tensor) for tensor in incoming}
        # A module that returns its input did nothing, and has no backward of its own.
        nodes = [t.grad_fn for t in _tensors(output) if t.grad_fn and id(t) not in known]
        # Without such an input the span ends with the node that made the output; where a module
        # inside made it, that one's span would outlast this one.
        if not nodes or (not incoming and any(_BEGINS in node.metadata for node in nodes)):
            return
        missing = [len(incoming)]

        def begin() -> None:
            if missing[0] >= 0 and id(missing) not in self._open:
                span = record_function(name)
                span.__enter__()
                self._open[id(missing)] = span

        def end(*_: Any) -> None:
            missing[0] -= 1
            if missing[0] <= 0:
                missing[0] = -1  # done: an output used twice does not open it again
                span = self._open.pop(id(missing), None)
                if span is not None:
                    span.__exit__(None, None, None)

        for node in nodes:
            _before(node, begin)
        for tensor in incoming:
            tensor.register_hook(end)
        if not incoming:
            nodes[0].register_hook(end)


def _before(node: Any, begin: Callable[[], None]) -> None:
    """Call `begin` before an autograd node runs; of several the one given last comes first.

    A module and the last module inside it share the node that made their output. The inner one
    returns first, and its backward must lie inside the outer one's.
    """
    if _BEGINS not in node.metadata:
        begins: list[Callable[[], None]] = []

        def before(*_: Any) -> None:
            for call in reversed(begins):
                call()

        node.metadata[_BEGINS] = begins
        node.register_prehook(before)
    node.metadata[_BEGINS].append(begin)


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


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
