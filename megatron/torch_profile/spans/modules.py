# SPDX-License-Identifier: Apache-2.0
"""Spans named by module: forward, backward and recomputation of every module of the model.

    decoder.layers.3.mlp: MLP                 forward
    decoder.layers.3.mlp: MLP (backward)      from the first gradient of its output that is used to
                                              the last gradient of its inputs that is complete; of
                                              its parameters, where its inputs have none; the
                                              model's own ends with the backward pass
    decoder.layers.3.mlp: MLP (recompute)     forward again, inside the backward pass

Where operators are recorded, backward spans are drawn into the finished trace, from the numbers
that autograd gives its nodes: that costs training nothing. Where they are not, backward spans come
from hooks on tensors and autograd nodes, not from module backward hooks: those put nodes of their
own between modules, which Megatron's in-place freeing of outputs and its checks for views do not
stand. The hooks return nothing, so gradients are what they were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

try:
    from torch.compiler import is_compiling
except ImportError:  # before torch 2.2
    from torch._dynamo.external_utils import is_compiling

from megatron.torch_profile.guard import Guard
from megatron.torch_profile.log import Slug
from megatron.torch_profile.spans.backward import BackwardSpans
from megatron.torch_profile.spans.graph_captures import (
    call_before_capture,
    is_graphed,
    is_to_come,
)
from megatron.torch_profile.spans.ranges import begin, end
from megatron.torch_profile.spans.token_dispatch import dispatcher_names, token_dispatch_spans
from megatron.torch_trace import wording

# What Megatron wraps a model chunk in; the paths users know begin below them.
_WRAPPER_ATTRIBUTE = "module"
# The model itself, which computes the loss outside of its parts.
_ROOT = "model"
# Megatron's and torch's placeholders for a part that a layer does not have: a tenth of all spans.
_NOTHING = ("IdentityOp", "IdentityFuncOp", "Identity")
# Where Megatron puts what a pipeline stage received: no argument of the forward that uses it.
_RECEIVED = "input_tensor"
# torch.compile's mark on a function, and on a module that it was called on.
_COMPILED_FORWARD, _COMPILED_IN_PLACE = "_torchdynamo_orig_callable", "_compiled_call_impl"
# Why a module can have no spans.
_IN_GRAPHS, _COMPILED = "in CUDA graphs", "compiled"


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
        for part in _parts(chunks, depth):
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

    def _watching(self, part: _Part, spans: BackwardSpans) -> Callable[..., None]:
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
        models = [(prefix, _unwrapped(chunk)) for prefix, chunk in _prefixed(chunks)]
        with token_dispatch_spans(dispatcher_names(models, depth)):
            yield spans
    finally:
        spans.remove()


@dataclass(frozen=True, slots=True)
class SpanCount:
    """How many modules of a model get spans, and how many can have none."""

    named: int
    in_graphs: int = 0
    compiled: int = 0

    def __str__(self) -> str:
        named = wording.counted(self.named, "module")
        return f"{named}; the {self._closed} get none" if self._closed else named

    @property
    def why_none(self) -> str:
        """Why no module has a span, where none has."""
        if self._closed:
            return f"the model is in CUDA graphs or compiled ({self._closed})"
        return "the model has no module within --torch-profile-spans-depth"

    @property
    def _closed(self) -> str:
        numbers = {_IN_GRAPHS: self.in_graphs, _COMPILED: self.compiled}
        return " and ".join(f"{number} {why}" for why, number in numbers.items() if number)


def count_spans(chunks: Any, depth: int | None = None) -> SpanCount:
    """What `ModuleSpans` would name; the model is not touched."""
    why = Counter(part.closed_by for part in _parts(chunks, depth))
    return SpanCount(why[None], why[_IN_GRAPHS], why[_COMPILED])


@dataclass(frozen=True, slots=True)
class _Part:
    """A module that a trace may speak of, and why it can have no hooks; None where it can.

    Args:
        capture_to_come: it can until its graph is captured.
    """

    name: str
    module: Any
    is_model: bool
    closed_by: str | None
    capture_to_come: bool = False


def _parts(chunks: Any, depth: int | None) -> Iterator[_Part]:
    for prefix, chunk in _prefixed(chunks):
        closed: dict[int, tuple[str, bool]] = {}
        for path, module in _unwrapped(chunk).named_modules():
            why = closed.get(id(module)) or _closed_by(module)
            if why:
                # Nor can what is inside.
                closed.update((id(child), why) for child in module.children())
            kind = type(module).__name__
            if _is_called(module) and (depth is None or path.count(".") < depth):
                name = f"{prefix}{path or _ROOT}: {kind}"
                yield _Part(name, module, not path, *(why or (None,)))


def _prefixed(chunks: Any) -> Iterator[tuple[str, Any]]:
    chunks = chunks if isinstance(chunks, (list, tuple)) else [chunks]
    for index, chunk in enumerate(chunks):
        yield f"chunk{index}." if len(chunks) > 1 else "", chunk


def _is_called(module: Any) -> bool:
    """Whether a trace has something to say of it: lists of modules are never called."""
    has_forward = type(module).forward is not torch.nn.Module.forward or "forward" in vars(module)
    return has_forward and type(module).__name__ not in _NOTHING


def _closed_by(module: Any) -> tuple[str, bool] | None:
    """Why a module and what is inside can have no hooks, and whether only a capture to come is."""
    if is_graphed(module):
        return _IN_GRAPHS, is_to_come(module)
    return (_COMPILED, False) if _is_compiled(module) else None


def _is_compiled(module: Any) -> bool:
    # What is compiled while hooks are on it would keep them, and its graph would be another.
    forward = vars(module).get("forward")
    return (
        hasattr(forward, _COMPILED_FORWARD) or getattr(module, _COMPILED_IN_PLACE, None) is not None
    )


def _unwrapped(chunk: Any) -> Any:
    while hasattr(chunk, _WRAPPER_ATTRIBUTE):
        chunk = getattr(chunk, _WRAPPER_ATTRIBUTE)
    return chunk
