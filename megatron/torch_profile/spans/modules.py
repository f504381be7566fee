# SPDX-License-Identifier: Apache-2.0
"""Spans named by module: forward, backward and recomputation of every module of the model.

    decoder.layers.3.mlp: MLP                 forward
    decoder.layers.3.mlp: MLP (backward)      from the first gradient of its output that is used to
                                              the last gradient of its inputs that is complete; of
                                              its parameters, where its inputs have none; the
                                              model's own ends with the backward pass
    decoder.layers.3.mlp: MLP (recompute)     forward again, inside the backward pass
    ...linear_fc1: Linear (weight gradient)   what its backward left out (method_spans.py)

Where operators are recorded, backward spans are drawn into the finished trace, from the numbers
that autograd gives its nodes: that costs training nothing. Where they are not, backward spans come
from hooks on tensors and autograd nodes, not from module backward hooks: those put nodes of their
own between modules, which Megatron's in-place freeing of outputs and its checks for views do not
stand. The hooks return nothing, so gradients are what they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

try:
    from torch.compiler import is_compiling
except ImportError:  # before torch 2.2
    from torch._dynamo.external_utils import is_compiling

from megatron.torch_profile.guard import Guard
from megatron.torch_profile.log import Slug
from megatron.torch_profile.spans.backward import BackwardSpans
from megatron.torch_profile.spans.graph_captures import call_before_capture
from megatron.torch_profile.spans.method_spans import method_spans
from megatron.torch_profile.spans.model_parts import ModelPart, model_parts
from megatron.torch_profile.spans.ranges import begin, end

# Where Megatron puts what a pipeline stage received: no argument of the forward that uses it.
_RECEIVED = "input_tensor"


class ModuleSpans:
    """Spans of a model's modules, while its hooks are in place.

    Args:
        chunks: Megatron's list of model chunks; DDP and precision wrappers are looked through.
            With several chunks (interleaved pipeline) the path begins with `chunk<i>.`; the
            model itself is `model`.
        depth: deepest path that gets a span (`decoder.layers.3` has depth 3); None for all.
        backward: whether backward passes get spans here and now.
    """

    def __init__(self, chunks: Any, depth: int | None = None, *, backward: bool = True) -> None:
        self._handles: list[Any] = []
        self._guard = Guard(Slug.SPANS_FAILED, "training goes on without spans of modules")
        self._backward = BackwardSpans(self._guard) if backward else None
        # A stack, because modules are inside each other, and one may be entered while it is open
        # (shared or recomputed).
        self._forward: list[tuple[str, Any]] = []
        self._removed = False
        self._until_capture: list[Any] = []
        for part in model_parts(chunks, depth):
            if part.closed_by is None:
                self._handles += self._hook(part.module, part.name)
                if self._backward is not None:
                    watching = self._watching(part, self._backward)
                    self._handles.append(
                        part.module.register_forward_hook(watching, with_kwargs=True)
                    )
            elif part.capture_to_come:
                # Not the backward pass: nodes that are captured would keep what watches them.
                self._until_capture += self._hook(part.module, part.name)
        self._forget_captures = (
            call_before_capture(self._leave_to_graphs) if self._until_capture else lambda: None
        )

    def _leave_to_graphs(self) -> None:
        """What is about to be captured must have no hook."""
        for handle in self._until_capture:
            handle.remove()
        self._until_capture.clear()

    def remove(self) -> None:
        """Take the hooks off, and close what a gradient that never came left open."""
        self._forget_captures()
        self._leave_to_graphs()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._removed = True
        while self._forward:
            end(self._forward.pop()[1])
        self.close_backward()

    @property
    def open(self) -> list[str]:
        """Names of what is open: the backward pass, then forwards, the outermost first."""
        backward = self._backward.open if self._backward else ()
        return [*backward, *(name for name, _ in self._forward)]

    def close_backward(self) -> None:
        """Close backward spans that a pass which failed left open."""
        if self._backward:
            self._backward.close()

    def _hook(self, module: Any, name: str) -> list[Any]:
        """Have a module call two functions, for which all that can be is made here, once."""
        forward, guard = self._forward, self._guard
        again = f"{name} (recompute)"
        graph_task = torch._C._current_graph_task_id

        # A compiled graph holds nothing of either: what it would trace ends at the first question.
        def enter(*_: Any) -> None:
            if is_compiling():
                return
            # Fused implementations keep the hooks that they once found.
            if self._removed or guard.failed:
                return
            try:
                # A graph task runs in this thread: the backward pass asks for the forward.
                forward.append((name, begin(name if graph_task() == -1 else again)))
            except Exception as error:
                guard.fail(error)

        def leave(*_: Any) -> None:
            if is_compiling():
                return
            if self._removed or guard.failed:
                return
            try:
                if forward and forward[-1][0] is name:
                    end(forward.pop()[1])
                else:
                    _leave(forward, name)
            except Exception as error:
                guard.fail(error)

        return [
            module.register_forward_pre_hook(enter, prepend=True),
            module.register_forward_hook(leave, always_call=True),
        ]

    def _watching(self, part: ModelPart, spans: BackwardSpans) -> Callable[..., None]:
        """A function to call after a module's forward, which has its backward leave a span."""
        module, guard, backward = part.module, self._guard, f"{part.name} (backward)"
        until = None if part.is_model else module.parameters
        grad_enabled, watch = torch.is_grad_enabled, spans.watch
        # torch looks for an attribute that a module lacks in four places, which takes microseconds.
        attributes = vars(module)

        def watching(_: Any, args: Any, kwargs: Any, output: Any) -> None:
            if is_compiling():
                return
            if self._removed or guard.failed:
                return
            try:
                if grad_enabled():
                    watch(backward, (args, kwargs, attributes.get(_RECEIVED)), output, until)
            except Exception as error:
                guard.fail(error)

        return watching


def _leave(forward: list[tuple[str, Any]], name: str) -> None:
    """End a module's span, and what is still open inside: it was entered and is never left.

    Fused implementations call the hooks of their parts before, and none after.
    """
    if any(name == open_name for open_name, _ in forward):
        left = None
        while left != name:
            left, opened = forward.pop()
            end(opened)


@contextmanager
def module_spans(
    chunks: Any, depth: int | None = None, *, backward: bool = True
) -> Iterator[ModuleSpans]:
    """While open, modules have spans; afterwards they have no hook left. See `ModuleSpans`."""
    spans = ModuleSpans(chunks, depth, backward=backward)
    try:
        with method_spans(model_parts(chunks, depth), depth):
            yield spans
    finally:
        spans.remove()
